"""DataParallel: slices of a batch side by side, by one call and one backward."""
import copy

import pytest

torch = pytest.importorskip("torch")

import torch.utils.checkpoint  # noqa: E402
from torch import nn  # noqa: E402

from lockstep import LockstepError  # noqa: E402
from lockstep.torch import DataParallel, GroupError, ghost  # noqa: E402


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.BatchNorm2d(2)).double()


def stepped(net, x):
    """What a training step leaves: the output, the gradients, and the running statistics."""
    x = x.clone().requires_grad_()
    y = net(x)
    y.square().sum().backward()
    return [y, x.grad, *(each.grad for each in net.parameters()), *net.buffers()]


@pytest.mark.parametrize("synchronize", [True, False])
@pytest.mark.parametrize("images", [8, 7, 3])
def test_it_is_the_whole_batch_and_without_sync_the_slices_by_themselves(synchronize, images):
    x = torch.randn(images, 3, 8, 8, dtype=torch.float64)
    expected = network() if synchronize else ghost(network(), 4)
    parallel = DataParallel(network(), 4, synchronize)
    for _ in range(2):
        for a, b in zip(stepped(parallel, x), stepped(expected, x)):
            torch.testing.assert_close(a, b)
    torch.testing.assert_close(parallel.eval()(x), expected.eval()(x))


def test_replicas_are_told_and_failures_are_named():
    class Told(nn.Module):
        seen = []

        def __data_parallel_replicate__(self, shared, rank):
            shared.ranks = [*getattr(shared, "ranks", []), rank]
            self.shared = shared

        def forward(self, x):
            self.seen.append(self.shared.ranks)
            return x

    net = nn.Sequential(Told(), network())
    kept = copy.deepcopy(net.state_dict())
    DataParallel(net, 3)(torch.randn(6, 3, 8, 8).double())
    assert Told.seen == [[0, 1, 2]] * 3 and kept.keys() == net.state_dict().keys()
    for size in (0, 1.5):
        with pytest.raises(ValueError, match="at least one slice"):
            DataParallel(network(), size)

    class Mean(nn.Module):
        def forward(self, x):
            return x.mean()
    with pytest.raises(LockstepError, match=r"expected a tensor \[N, ...\] from the model, got \[\]"):
        DataParallel(Mean(), 2)(torch.randn(4, 3))

    class Fails(nn.Module):
        def forward(self, x):
            if len(x) == 1:
                raise KeyError("too few")
            return x
    with pytest.raises((KeyError, GroupError), match="too few"):
        DataParallel(nn.Sequential(network(), Fails(), nn.BatchNorm2d(2).double()), 2)(torch.randn(3, 3, 8, 8).double())


class Checkpointed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.net, x, use_reentrant=False)


def test_checkpointed_parts_meet_again_in_backward():
    x = torch.randn(4, 3, 6, 6, dtype=torch.float64) * torch.tensor([1.0, 1.0, 5.0, 5.0]).view(4, 1, 1, 1)
    plain, parts = network(), DataParallel(Checkpointed(), 2)
    plain(x).square().mean().backward()
    parts(x).square().mean().backward()
    for a, b in zip(plain.parameters(), parts.parameters()):
        assert torch.allclose(a.grad, b.grad, atol=1e-10)


def test_hooks_on_gradients_are_called_once():
    x = torch.randn(4, 3, 6, 6, dtype=torch.float64)
    gradients = []
    for net in (network(), DataParallel(network(), 2)):
        weight = next(net.parameters())
        weight.register_hook(lambda gradient: gradient * 0.5)
        net(x).square().sum().backward()
        gradients.append(weight.grad)
    assert torch.allclose(*gradients)
