"""convert(), revert() and ghost(): the layers that they exchange, and what stays."""
import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from lockstep import LockstepError  # noqa: E402
from lockstep.torch import (BatchNormNd, GhostBatchNorm, Group, GroupError, SyncBatchNorm, ThreadGroup, convert,  # noqa: E402
                            ghost, own_statistics, revert)
from own_forwards import (ActivatedBatchNorm, ActivatedSyncBatchNorm, DoubledBatchNorm, Handmade,  # noqa: E402
                          whole_network)


def network():
    return nn.Sequential(nn.Conv1d(2, 4, 1), nn.BatchNorm1d(4), nn.Sequential(nn.BatchNorm1d(4, momentum=None, eps=1e-2)),
                         nn.InstanceNorm1d(4))


def test_convert_and_back_keep_tensors_options_and_kinds():
    net = network()
    net[2].eval()
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    converted = convert(net, ThreadGroup(2).member(0))
    assert converted is net and type(net[3]) is nn.InstanceNorm1d
    for layer in (net[1], net[2][0]):  # who looks for what was there finds it
        assert isinstance(layer, SyncBatchNorm) and isinstance(layer, nn.BatchNorm1d) and repr(layer).startswith("SyncBatchNorm(4")
    assert net[1].name == "1" and net[2][0].name == "2.0" and net[1].training and not net[2][0].training
    assert net[2][0].momentum is None and net[2][0].eps == 1e-2
    reverted = revert(net)
    assert [type(net[1]), type(net[2][0])] == [nn.BatchNorm1d] * 2 and not net[2][0].training
    now = {**dict(reverted.named_parameters()), **dict(reverted.named_buffers())}
    assert list(now) == list(tensors) and all(now[name] is tensors[name] for name in now)


def test_a_layer_alone_and_a_shared_one():
    layer = nn.BatchNorm2d(3)
    assert convert(layer, ThreadGroup(1).member(0)) is layer and isinstance(layer, SyncBatchNorm)
    shared = nn.BatchNorm2d(3)
    net = nn.ModuleDict({"a": shared, "b": shared})
    convert(net, ThreadGroup(1).member(0))
    assert net["a"] is net["b"] and net["a"].name == "a"


def test_pytorch_s_own_sync_batch_norm_runs_on_one_cpu_after_revert():
    net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(3)))
    x = torch.randn(4, 3, 5, 5)
    assert type(revert(net)[0]) is BatchNormNd
    assert torch.equal(net(x), nn.BatchNorm2d(3)(x))


def test_copies_meet_the_same_ranks_and_files_have_none():
    member = ThreadGroup(2).member(1)
    net = convert(network(), member)
    assert copy.deepcopy(net)[1].group is member
    loaded = pickle.loads(pickle.dumps(net))
    with pytest.raises(GroupError, match="1 was loaded or copied from another process, and its ranks were threads of that"):
        loaded(torch.randn(3, 2, 4))
    assert net[1].group is member and loaded.eval()(torch.randn(3, 2, 4)).shape == (3, 4, 4)
    assert convert(loaded, Group()).train()(torch.randn(3, 2, 4)).shape == (3, 4, 4)  # one rank, since it was said
    alone = pickle.loads(pickle.dumps(loaded))
    assert alone.train()(torch.randn(3, 2, 4)).shape == (3, 4, 4)
    assert list(net.state_dict()) == list(network().state_dict())


def test_without_ranks_it_does_not_train():
    for net in (SyncBatchNorm(3), convert(nn.Sequential(nn.BatchNorm2d(3)))):
        with pytest.raises(GroupError, match="without ranks trains: call torch.distributed.init_process_group"):
            net(torch.randn(2, 3, 4, 4))
        assert net.eval()(torch.randn(2, 3, 4, 4)).shape == (2, 3, 4, 4)
        with pytest.raises(GroupError, match="without ranks trains"):
            pickle.loads(pickle.dumps(net)).train()(torch.randn(2, 3, 4, 4))


def results(net, x):
    """Outputs in training and in evaluation, gradients, and what is left in the buffers; of a copy."""
    net = copy.deepcopy(net)
    y = net.train()(x)
    y.square().sum().backward()
    return [y.detach(), *(each.grad for each in net.parameters()), net.eval()(x).detach(), *net.buffers()]


def assert_alike(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-9), (a - b).abs().max()


EXCHANGES = {"convert": lambda net: convert(net, Group()), "ghost": lambda net: ghost(net, 1),
             "revert": lambda net: revert(convert(net, Group())), "again": lambda net: ghost(convert(net, Group()), 1),
             "from a file": lambda net: pickle.loads(pickle.dumps(convert(net, Group())))}


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_forward_of_its_own_stays(exchange):
    net, x = whole_network().double(), torch.randn(4, 3, 8, 8, dtype=torch.float64)
    exchanged = EXCHANGES[exchange](copy.deepcopy(net))
    assert_alike(results(exchanged, x), results(net, x))
    assert isinstance(exchanged[1], ActivatedBatchNorm) and isinstance(exchanged[3], DoubledBatchNorm)
    assert exchanged[3](torch.ones(2, 6, 2, 2, dtype=torch.float64), factor=0.0).abs().max() == 0
    back = revert(exchanged)
    assert [type(each) for each in back] == [type(each) for each in net] and not set(vars(back[1])) - set(vars(net[1]))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_layer_without_bias_stays_so(exchange):
    net, x = nn.Sequential(nn.BatchNorm2d(3)).double(), torch.randn(4, 3, 5, 5, dtype=torch.float64)
    net[0].register_parameter("bias", None)  # as BatchNorm2d(3, bias=False) of newer PyTorch
    exchanged = EXCHANGES[exchange](copy.deepcopy(net))
    assert exchanged[0].bias is None and SyncBatchNorm(3, bias=False).bias is None
    assert_alike(results(exchanged, x), results(net, x))


def test_ranks_share_statistics_under_a_forward_of_its_own():
    net, x = whole_network().double(), torch.randn(6, 3, 8, 8, dtype=torch.float64)
    replicas = [copy.deepcopy(net) for _ in range(3)]
    parts = ThreadGroup(3, timeout=100).run(lambda member: convert(replicas[member.rank], member)(x.chunk(3)[member.rank]))
    assert torch.allclose(torch.cat(parts), net(x), rtol=1e-9, atol=1e-9)
    assert torch.allclose(replicas[0][1].running_var, net[1].running_var) and replicas[0][1].num_batches_tracked == 1


def test_a_subclass_of_pytorch_s_own_sync_batch_norm():
    torch.manual_seed(0)
    net, x = nn.Sequential(ActivatedSyncBatchNorm(3)), torch.randn(4, 3, 5, 5)
    expected = nn.BatchNorm2d(3)(x).relu()
    for exchanged in (revert(copy.deepcopy(net)), convert(copy.deepcopy(net), Group()), revert(convert(copy.deepcopy(net), Group())),
                      pickle.loads(pickle.dumps(revert(copy.deepcopy(net))))):
        assert torch.allclose(exchanged.train()(x), expected, atol=1e-6) and isinstance(exchanged[0], ActivatedSyncBatchNorm)
        assert revert(exchanged)[0].train() is exchanged[0] or type(exchanged[0]) is not SyncBatchNorm


def test_what_cannot_be_exchanged_is_refused_by_name():
    net = convert(nn.Sequential(Handmade(3)), Group())
    with pytest.raises(LockstepError, match="0 is a Handmade, whose forward does not call"):
        net(torch.randn(2, 3, 4, 4))
    assert net.eval()(torch.randn(2, 3, 4, 4)).shape == (2, 3, 4, 4)
    with pytest.raises(LockstepError, match="0, a LazyBatchNorm2d, does not know its channels yet"):
        convert(nn.Sequential(nn.LazyBatchNorm2d()), Group())
    patched = nn.Sequential(nn.BatchNorm2d(3))
    patched[0].forward = lambda x: x
    with pytest.raises(LockstepError, match="0, a BatchNorm2d, has a forward that was put into this one layer"):
        ghost(patched, 2)
    named = nn.Sequential(nn.BatchNorm2d(3))
    named[0].group = "of somebody else"
    with pytest.raises(LockstepError, match="0, a BatchNorm2d, has 'group' of its own"):
        convert(named, Group())


def test_hooks_stay():
    net = nn.Sequential(nn.BatchNorm2d(3))
    seen = []
    net[0].register_forward_hook(lambda layer, inputs, output: seen.append(type(layer)))
    x = torch.randn(2, 3, 4, 4)
    convert(net, Group())(x), revert(net)(x)
    assert issubclass(seen[0], SyncBatchNorm) and seen[1] is nn.BatchNorm2d


def test_a_layer_that_is_also_kept_elsewhere_is_the_same_one():
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
            self.both = [self.first, self.second]

        def forward(self, x):
            for layer in self.both:
                x = layer(x).relu()
            return x

    x = torch.randn(4, 3, 5, 5) * torch.tensor([1.0, 1.0, 9.0, 9.0]).view(4, 1, 1, 1)
    ranks = ThreadGroup(2).run(lambda member: convert(Listed(), member)(x.chunk(2)[member.rank]).detach())
    assert torch.allclose(torch.cat(ranks), Listed()(x), atol=1e-5)


def test_inputs_that_batch_norm_refuses_are_refused():
    layer = convert(nn.BatchNorm2d(3), Group())
    for x, error in ((torch.zeros(4, 3, 2, 2, dtype=torch.complex64), "expected an input of floating-point numbers"),
                     (torch.zeros(4, 3, 2, 2, dtype=torch.uint8), "expected an input of floating-point numbers"),
                     (torch.zeros(4, 1, 2, 2), "expected an input of 3 channels"), (torch.zeros(3, 3, 5), "expected 4D input")):
        with pytest.raises(ValueError, match=error):
            layer(x)
    for change in (own_statistics, lambda net: ghost(net, 2)):
        with pytest.raises(ValueError, match="expected 4D input"):
            change(nn.BatchNorm2d(3))(torch.zeros(4, 3))
    for slices in (0, 2.5, "2"):
        with pytest.raises(ValueError, match="expected at least one slice"):
            ghost(nn.BatchNorm2d(3), slices)


def test_torchscript_and_parametrized_layers_are_refused():
    for change in (lambda net: convert(net, Group()), lambda net: ghost(net, 2), own_statistics):
        with pytest.raises(LockstepError, match="0 is TorchScript"):
            change(torch.jit.script(nn.Sequential(nn.BatchNorm2d(3))))
        with pytest.raises(LockstepError, match="0, a ParametrizedBatchNorm2d, has parametrizations"):
            net = nn.Sequential(nn.BatchNorm2d(3))
            nn.utils.parametrize.register_parametrization(net[0], "weight", nn.ReLU())
            change(net)


def test_torch_fx_takes_layers_as_they_are():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    x = torch.randn(2, 3, 8, 8)
    for change in (lambda net: convert(net, Group()), lambda net: ghost(net, 2), own_statistics):
        changed = change(copy.deepcopy(net))
        assert torch.equal(torch.fx.symbolic_trace(changed)(x), changed(x))


@pytest.mark.parametrize("name", ["test_efficientnet", "mobilenetv3_small_050"])
def test_timm_s_networks(name):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    net, x = timm.create_model(name, num_classes=5, drop_rate=0.0).double(), torch.randn(2, 3, 64, 64, dtype=torch.float64)
    for exchange in EXCHANGES.values():
        assert_alike(results(exchange(copy.deepcopy(net)), x), results(net, x))


@pytest.mark.parametrize("images, slices", [(8, 4), (7, 3), (6, 1), (5, 4)])
def test_ghost_is_chunked_batch_norm(images, slices):
    torch.manual_seed(0)
    x = torch.randn(images, 3, 4, 4, dtype=torch.float64) + torch.arange(images).view(-1, 1, 1, 1)
    plain = nn.BatchNorm2d(3).double()
    sliced = ghost(copy.deepcopy(plain), slices)
    weight = torch.randn_like(x)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected = torch.cat([plain(part) if number == 0 else
                          functional.batch_norm(part, None, None, plain.weight, plain.bias, True, 0.0, plain.eps)
                          for number, part in enumerate(a.chunk(slices))])
    y = sliced(b)
    (expected * weight).sum().backward()
    (y * weight).sum().backward()
    assert torch.equal(y, expected) and torch.equal(a.grad, b.grad)
    assert torch.equal(plain.weight.grad, sliced.weight.grad)
    assert torch.equal(plain.running_mean, sliced.running_mean) and torch.equal(plain.running_var, sliced.running_var)
    assert torch.equal(plain.eval()(x), sliced.eval()(x))
    assert isinstance(sliced, GhostBatchNorm) and type(revert(sliced)) is nn.BatchNorm2d


def test_a_slice_of_one_value_names_the_layer():
    net = ghost(nn.Sequential(nn.BatchNorm1d(3)), 4)
    with pytest.raises(ValueError, match="0: 4 slices of .*use fewer slices"):
        net(torch.randn(4, 3))
    with pytest.raises(ValueError, match="at least one slice"):
        ghost(net, 0)


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="this PyTorch does not compile")
@pytest.mark.parametrize("exchange", [lambda net: ghost(net, 2), lambda net: convert(net, Group()), own_statistics],
                         ids=["ghost", "convert", "own"])
@pytest.mark.parametrize("make", [whole_network, network])
def test_a_compiled_network_computes_the_same(make, exchange):
    net = exchange(make()).double()
    x = torch.randn((4, 3, 8, 8) if make is whole_network else (4, 2, 5), dtype=torch.float64)
    compiled, plain = copy.deepcopy(net), results(net, x)
    assert_alike(results(torch.compile(compiled, backend="eager"), x), plain)
    if exchange is not own_statistics:  # which answers in evaluation, too
        evaluated = net.eval()(x)
        assert torch.equal(torch.compile(net, backend="eager", fullgraph=True)(x), evaluated)
