"""convert(), revert() and ghost(): the layers that they exchange, and what stays."""
import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from lockstep.torch import BatchNormNd, GhostBatchNorm, SyncBatchNorm, ThreadGroup, convert, ghost, revert  # noqa: E402


def network():
    return nn.Sequential(nn.Conv1d(2, 4, 1), nn.BatchNorm1d(4), nn.Sequential(nn.BatchNorm1d(4, momentum=None, eps=1e-2)),
                         nn.InstanceNorm1d(4))


def test_convert_and_back_keep_tensors_options_and_kinds():
    net = network()
    net[2].eval()
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    converted = convert(net, ThreadGroup(2).member(0))
    assert converted is net and [type(each) for each in (net[1], net[2][0], net[3])] == [SyncBatchNorm, SyncBatchNorm,
                                                                                       nn.InstanceNorm1d]
    assert net[1].name == "1" and net[2][0].name == "2.0" and net[1].training and not net[2][0].training
    assert net[2][0].momentum is None and net[2][0].eps == 1e-2
    reverted = revert(net)
    assert [type(net[1]), type(net[2][0])] == [nn.BatchNorm1d] * 2 and not net[2][0].training
    now = {**dict(reverted.named_parameters()), **dict(reverted.named_buffers())}
    assert list(now) == list(tensors) and all(now[name] is tensors[name] for name in now)


def test_a_layer_alone_and_a_shared_one():
    assert type(convert(nn.BatchNorm2d(3), ThreadGroup(1).member(0))) is SyncBatchNorm
    shared = nn.BatchNorm2d(3)
    net = nn.ModuleDict({"a": shared, "b": shared})
    convert(net, ThreadGroup(1).member(0))
    assert net["a"] is net["b"] and net["a"].name == "a"


def test_pytorch_s_own_sync_batch_norm_runs_on_one_cpu_after_revert():
    net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm2d(3)))
    x = torch.randn(4, 3, 5, 5)
    assert type(revert(net)[0]) is BatchNormNd
    assert torch.equal(net(x), nn.BatchNorm2d(3)(x))


def test_copies_meet_the_same_ranks_and_files_have_no_group(tmp_path):
    member = ThreadGroup(2).member(1)
    net = convert(network(), member)
    assert copy.deepcopy(net)[1].group is member
    import pickle
    loaded = pickle.loads(pickle.dumps(net))
    assert loaded[1].group.size == 1 and net[1].group is member
    assert list(net.state_dict()) == list(network().state_dict())


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
