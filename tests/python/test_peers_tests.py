"""What the tests of other SyncBatchNorms check of theirs, checked of this package's: vacancy/Synchronized-BatchNorm-PyTorch (seven
tests), NVIDIA/apex (nine) and horovod (six assertions). The code is this project's own; ranks are threads."""
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import lockstep.torch  # noqa: E402
from lockstep.torch import Group, ThreadGroup, convert  # noqa: E402


# --- the shim: the others' names for what is here ---

class SynchronizedBatchNorm(lockstep.torch.SyncBatchNorm):
    """vacancy's: alone, until a DataParallelWithCallback has it."""

    def __init__(self, channels, **options):
        super().__init__(channels, group=Group(), eps_mode="clamp", **options)


def data_parallel_with_callback(layer, device_ids):
    return lockstep.torch.DataParallel(layer, len(device_ids))


class ApexSyncBatchNorm(lockstep.torch.SyncBatchNorm):
    """apex's, which may take [N, ..., C]."""

    def __init__(self, channels, process_group=None, channel_last=False, **options):
        super().__init__(channels, process_group=process_group or Group(), **options)
        self.channel_last = channel_last

    def forward(self, x):
        return super().forward(x.movedim(-1, 1)).movedim(1, -1) if self.channel_last else super().forward(x)


def all_reduce(of_ranks):
    """horovod's, which takes the mean."""
    return sum(of_ranks) / len(of_ranks)


# --- the properties ---

def close(a, b, error=1e-5):
    torch.testing.assert_close(a.to(b.dtype), b, rtol=error, atol=error)


def pass_of(layer, x, dy):
    """A leaf of x and what comes of it."""
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    y.backward(dy)
    return x, y


def same(layer, plain, x, dy=None, error=1e-5):
    """Output, gradients and running statistics of two layers."""
    dy = torch.ones_like(x) if dy is None else dy
    (x1, y1), (x2, y2) = pass_of(layer, x, dy), pass_of(plain, x, dy)
    inner = getattr(layer, "module", layer)
    for a, b in ((y1, y2), (x1.grad, x2.grad), (inner.running_mean, plain.running_mean), (inner.running_var, plain.running_var)):
        close(a, b, error)
    for a, b in zip(inner.parameters(), plain.parameters()):
        close(a.grad, b.grad, max(error, 1e-4))  # sums of many


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("devices, shape, plain", [(0, (16, 10), nn.BatchNorm1d), (2, (16, 10), nn.BatchNorm1d),
                                                   (2, (16, 10, 16, 16), nn.BatchNorm2d)])
def test_vacancy_s_layers_are_the_plain_ones(devices, shape, plain, training):
    torch.manual_seed(0)
    layer = SynchronizedBatchNorm(10, affine=devices == 0)
    parallel = data_parallel_with_callback(layer, list(range(devices))) if devices else layer
    same(parallel.train(training), plain(10, affine=devices == 0).train(training), torch.rand(shape), error=1e-3)


def test_vacancy_s_formula_clamps():
    torch.manual_seed(0)
    x = (torch.rand(16, 10) * torch.tensor([1.0, 0.009] * 5)).requires_grad_()  # half of them below eps
    layer = SynchronizedBatchNorm(10, momentum=1.0, affine=False)
    dy = torch.rand(16, 10)
    x1, y1 = pass_of(layer, x, dy)
    y2 = (x - x.mean(0)) / x.var(0, unbiased=False).clamp(min=1e-5).sqrt()
    y2.backward(dy)
    close(y1, y2)
    close(x1.grad, x.grad, 1e-3)
    close(layer.running_mean, x.mean(0))
    close(layer.running_var, x.var(0))
    settled = layer.eval()(x)
    close(settled, (x - x.mean(0)) / x.var(0).clamp(min=1e-5).sqrt())


def test_vacancy_s_many_steps_are_the_plain_ones():
    torch.manual_seed(0)
    layers = [nn.BatchNorm2d(16, momentum=1.0), SynchronizedBatchNorm(16, momentum=1.0)]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in layers]
    for _ in range(20):
        x = torch.rand(16, 16, 8, 8)
        for layer, optimizer in zip(layers, optimizers):
            layer(x).sum().backward()
            optimizer.step()
    for a, b in zip(layers[1].state_dict().values(), layers[0].state_dict().values()):
        close(a, b, 1e-3)


@pytest.mark.parametrize("shape, channel_last", [((5, 10, 16, 16), False), ((5, 16, 16, 10), True), ((8, 10), False)])
def test_apex_s_layer_on_one_device(shape, channel_last):
    torch.manual_seed(1)
    layer, plain = ApexSyncBatchNorm(10, channel_last=channel_last, momentum=1.0), nn.BatchNorm2d(10, momentum=1.0)
    nn.init.normal_(layer.weight)
    plain.load_state_dict(layer.state_dict())
    x, dy = torch.randn(shape), torch.randn(shape)
    if channel_last:
        x1, y1 = pass_of(layer, x, dy)
        x2, y2 = pass_of(plain, x.movedim(-1, 1), dy.movedim(-1, 1))
        close(y1.movedim(-1, 1), y2)
        close(x1.grad.movedim(-1, 1), x2.grad)
        close(layer.weight.grad, plain.weight.grad, 1e-4)
    else:
        same(layer, plain if len(shape) == 4 else _as_1d(plain), x, dy)


def _as_1d(plain):
    layer = nn.BatchNorm1d(10, momentum=1.0)
    layer.load_state_dict(plain.state_dict())
    return layer


@pytest.mark.parametrize("dtype, error", [(torch.float32, 1e-5), (torch.float16, 5e-3), (torch.float64, 1e-8)])
@pytest.mark.parametrize("sizes, groups", [((16, 16), 1), ((16, 16), 2), ((24, 8), 1)])
def test_apex_s_layer_on_two_ranks(dtype, error, sizes, groups):
    """Ranks of one size, of two, and two groups of them, each with a batch of its own."""
    def of_group(number):
        torch.manual_seed(18 + number)
        x, dy = (torch.randn(sum(sizes), 10, 8, 8, dtype=dtype) for _ in range(2))
        whole = nn.BatchNorm2d(10, momentum=1.0).double()
        x2, y2 = pass_of(whole, x.double(), dy.double())

        def work(member):
            layer = ApexSyncBatchNorm(10, process_group=member, momentum=1.0).to(dtype)
            place = slice(sum(sizes[:member.rank]), sum(sizes[:member.rank + 1]))
            return layer, *pass_of(layer, x[place], dy[place])
        ranks = ThreadGroup(2).run(work)
        close(torch.cat([y for _, _, y in ranks]), y2, error)
        close(torch.cat([x1.grad for _, x1, _ in ranks]), x2.grad, error)
        close(sum(layer.weight.grad for layer, _, _ in ranks), whole.weight.grad, 1e2 * error)
        close(sum(layer.bias.grad for layer, _, _ in ranks), whole.bias.grad, 1e2 * error)
        for layer, _, _ in ranks:
            close(layer.running_mean, whole.running_mean, error)
            close(layer.running_var, whole.running_var, error)
    for number in range(groups):
        of_group(number)


@pytest.mark.parametrize("length", [2, 1])
def test_horovod_s_layer(length):
    size = 3
    x = torch.tensor([[[float(r * factor + step) for step in range(length)] for factor in range(1, 5)] for r in range(size)]) + (length == 1)
    plain = nn.BatchNorm1d(4)
    whole = x.clone().requires_grad_()
    expected = plain(whole)
    expected.mean(0).sum().backward()

    def work(member):
        layer, own = convert(nn.BatchNorm1d(4), member), x.clone().requires_grad_()
        y = layer(own[member.rank][None])
        y.sum().backward()
        return layer, own.grad, y
    ranks = ThreadGroup(size).run(work)
    for rank, (layer, _, y) in enumerate(ranks):
        close(y, expected[rank][None])
        close(layer.running_mean, plain.running_mean)
        close(layer.running_var, plain.running_var)
    close(all_reduce([layer.weight.grad for layer, _, _ in ranks]), plain.weight.grad)
    close(all_reduce([layer.bias.grad for layer, _, _ in ranks]), plain.bias.grad)
    close(all_reduce([gradient for _, gradient, _ in ranks]), whole.grad)
