"""SyncBatchNorm over threads: what one process computes of the whole batch, and failures that name rank and layer."""
import threading
import time

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from lockstep.torch import GroupError, SyncBatchNorm, ThreadGroup, convert  # noqa: E402
from lockstep.torch import fused, pieces  # noqa: E402
from lockstep.torch.groups import Call  # noqa: E402
from whole_batch import assert_ranks_are_whole, make_net, rank_steps  # noqa: E402

COUNTS = [[2, 2, 2, 2], [1, 4, 2, 1], [0, 3, 0, 5], [3, 0, 2, 0], [6]]


@pytest.mark.parametrize("counts", COUNTS)
def test_ranks_are_one_process_with_the_whole_batch(counts):
    nets = [make_net() for _ in counts]  # here: threads share PyTorch's random numbers
    ranks = ThreadGroup(len(counts), timeout=100).run(
        lambda member: rank_steps(convert(nets[member.rank], member), counts, member.rank))
    assert_ranks_are_whole(ranks, counts)


def test_values_stand_in_the_order_of_the_ranks():
    def work(member):
        time.sleep(0.02 * (3 - member.rank))  # the last comes first
        return member.all_show(Call("order", "forward", 1), torch.tensor([float(member.rank)])).flatten().tolist()
    assert ThreadGroup(4, timeout=100).run(work) == [[0, 1, 2, 3]] * 4


def test_gradients_are_those_of_finite_differences():
    def work(member):
        generator = torch.Generator().manual_seed(member.rank)
        layer = SyncBatchNorm(3, group=member).double()
        x = torch.randn(4, 3, 2, 1, dtype=torch.float64, generator=generator)
        # Random: of a plain sum the gradient is zero.
        weight = torch.randn(4, 3, 2, 1, dtype=torch.float64, generator=generator)

        def total(of_rank_0):
            with torch.no_grad():
                y = layer(of_rank_0 if member.rank == 0 else x)
                own = torch.cat([(y * weight).sum().reshape(1), torch.zeros(1)])
                return float(member.all_show(Call("test", "forward", 2), own)[:, 0].sum())

        leaf = x.clone().requires_grad_()
        (layer(leaf) * weight).sum().backward()
        numeric = torch.zeros_like(x)
        for place in range(x.numel()):
            moved = torch.zeros_like(x).view(-1)
            moved[place] = 1e-6
            numeric.view(-1)[place] = (total(x + moved.view_as(x)) - total(x - moved.view_as(x))) / 2e-6
        return leaf.grad, numeric
    analytic, numeric = ThreadGroup(3, timeout=100).run(work)[0]  # rank 0's x reaches all ranks' outputs
    assert torch.allclose(analytic, numeric, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 5), (6, 4, 3, 2), (6, 4, 2, 3, 2)])
@pytest.mark.parametrize("affine, tracks", [(True, True), (False, True), (True, False)])
def test_inputs_of_any_dimensions_and_kinds(shape, affine, tracks):
    torch.manual_seed(1)
    x = torch.randn(shape, dtype=torch.float64)
    plain = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)](
        4, affine=affine, track_running_stats=tracks).double()
    expected = plain(x)
    parts = ThreadGroup(2, timeout=100).run(
        lambda member: SyncBatchNorm(4, affine=affine, track_running_stats=tracks, group=member).double()(
            x.chunk(2)[member.rank]))
    assert torch.allclose(torch.cat(parts), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_lower_precision_and_far_means(dtype, tolerance):
    torch.manual_seed(2)
    x = (torch.randn(8, 4, 5, 5, dtype=torch.float64) + 100 * (dtype == torch.float32)).to(dtype)
    expected = nn.BatchNorm2d(4).double()(x.double())
    parts = ThreadGroup(2, timeout=100).run(lambda member: SyncBatchNorm(4, group=member)(x.chunk(2)[member.rank]))
    assert all(part.dtype == dtype for part in parts)
    assert torch.allclose(torch.cat(parts).double(), expected, rtol=tolerance, atol=tolerance)


def test_evaluation_does_not_meet():
    layer = SyncBatchNorm(4, group=ThreadGroup(2, timeout=0.1).member(0)).eval()
    x = torch.randn(3, 4, 2, 2)
    assert torch.equal(layer(x), nn.BatchNorm2d(4).eval()(x))


def test_one_value_of_all_ranks_names_the_layer():
    net = nn.Sequential(nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match="0: batch statistics need more than one value per channel"):
        ThreadGroup(2, timeout=5).run(
            lambda member: convert(nn.Sequential(nn.BatchNorm1d(3)), member)(torch.zeros(1 - member.rank, 3)))
    assert net[0].num_batches_tracked == 0


def errors_of(size, work, timeout=100.0):
    """The error of each rank, None for those without; and the seconds it took."""
    group = ThreadGroup(size, timeout)
    errors = [None] * size

    def run(rank):
        try:
            with group.member(rank) as member:
                work(member)
        except Exception as error:
            errors[rank] = error
    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive(), "a rank hangs"
    return errors, time.monotonic() - begin


def two_layers(member):
    net = convert(nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5)), member)
    return net, torch.randn(2, 3, 4, 4)


def test_a_rank_that_fails_is_named_on_all_others():
    def work(member):
        net, x = two_layers(member)
        net(x).sum().backward()
        if member.rank == 2:
            raise RuntimeError("disk on fire")
        net(x)
    errors, seconds = errors_of(4, work)
    assert str(errors[2]) == "disk on fire" and seconds < 90
    for rank in (0, 1, 3):
        assert isinstance(errors[rank], GroupError) and errors[rank].rank == 2
        assert "rank 2 failed: RuntimeError: disk on fire; it was last in the backward of 2" in str(errors[rank])


def test_a_rank_that_leaves_is_named_on_all_others():
    def work(member):
        net, x = two_layers(member)
        for _ in range(1 if member.rank == 1 else 2):
            net(x)
    errors, seconds = errors_of(3, work)
    assert errors[1] is None and seconds < 90
    for rank in (0, 2):
        assert isinstance(errors[rank], GroupError) and errors[rank].rank == 1
        assert "rank 1 has left" in str(errors[rank]) and "the forward of 0; it was last in the forward of 2" in str(errors[rank])


def test_a_rank_that_skips_a_layer_is_named_on_all():
    def work(member):
        net, x = two_layers(member)
        if member.rank == 1:
            x = torch.randn(2, 5, 4, 4)
            net[2](x)
        else:
            net(x)
    errors, seconds = errors_of(3, work)
    assert seconds < 90
    for error in errors:
        assert isinstance(error, GroupError) and error.rank == 1
        assert "rank 1 is in the forward of 2, rank 0 in the forward of 0" in str(error)


def test_a_rank_that_skips_the_backward_is_named():
    def work(member):
        net, x = two_layers(member)
        y = net(x)
        if member.rank == 1:
            net(x)
        else:
            y.sum().backward()
    errors, _ = errors_of(2, work)
    assert "rank 1 is in the forward of 0, rank 0 in the backward of 2" in str(errors[0])


def test_a_rank_that_does_not_come_is_named():
    failed = threading.Event()

    def work(member):
        net, x = two_layers(member)
        if member.rank == 1:
            failed.wait(60)
        try:
            net(x)
        finally:
            failed.set()
    errors, _ = errors_of(3, work, timeout=2)
    for error in errors:
        assert isinstance(error, GroupError) and error.rank == 1
        assert "rank 1 has not come to the forward of 0" in str(error) and "it has not been in any layer" in str(error)


def test_run_raises_the_cause_and_not_its_consequences():
    def work(member):
        net, x = two_layers(member)
        if member.rank == 3:
            raise KeyError("cause")
        net(x)
    for _ in range(20):
        with pytest.raises(KeyError, match="cause"):
            ThreadGroup(4, timeout=5).run(work)


def test_backward_after_run_is_told_where_it_belongs():
    outputs = ThreadGroup(2, timeout=5).run(lambda member: two_layers(member)[0](torch.randn(2, 3, 4, 4, requires_grad=True)))
    with pytest.raises(GroupError, match=r"backward of 2, and run\(\) has ended: call backward in the function that run\(\) calls"):
        torch.cat(outputs).sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_backward_after_run_is_told_so_too(reentrant):
    from torch.utils.checkpoint import checkpoint

    def work(member):
        return checkpoint(two_layers(member)[0], torch.randn(2, 3, 4, 4, requires_grad=True), use_reentrant=reentrant)
    outputs = ThreadGroup(2, timeout=5).run(work)
    with pytest.raises((GroupError, RuntimeError), match=r"forward of 0, and run\(\) has ended: call backward in the function that run\(\) calls"):
        torch.cat(outputs).sum().backward()


@pytest.mark.parametrize("meets", [True, False])
def test_an_interrupt_ends_the_ranks(meets):
    """Where they meet, and where they compute."""
    began, steps = threading.Barrier(3), [0, 0]

    def work(member):
        net, x = two_layers(member)
        began.wait(60)
        while True:
            if meets:
                net(x)
            steps[member.rank] += 1
            time.sleep(0.001)

    def interrupt():
        began.wait(60)
        import _thread
        _thread.interrupt_main()
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        ThreadGroup(2, timeout=60).run(work)
    after = list(steps)
    time.sleep(0.05)
    assert steps == after and not any(thread.name.startswith("rank ") and thread.is_alive() for thread in threading.enumerate())


@pytest.mark.parametrize("shape", [(5, 7, 9, 11), (4, 3), (3, 2, 400, 500), (70000, 2)])
def test_passes_by_pieces_are_those_of_the_kernels(shape):
    torch.manual_seed(0)
    x, dy = torch.randn(shape, dtype=torch.float64) + 3, torch.randn(shape, dtype=torch.float64)
    mean, var, weight, bias = torch.randn(4, shape[1], dtype=torch.float64).abs() + 0.1
    for name, arguments in {"moments": (x,), "normalised": (x, mean, var, 1e-3, weight, bias),
                            "gradient_sums": (x, dy, mean, var, 1e-3), "input_gradient": (x, dy, mean, var, weight, bias)}.items():
        assert torch.allclose(getattr(pieces, name)(*arguments), getattr(fused, name)(*arguments), rtol=1e-9, atol=1e-9), name


def test_a_group_goes_on_after_a_failure():
    group = ThreadGroup(2)

    def fails(member):
        raise RuntimeError("a typo")
    with pytest.raises(RuntimeError, match="a typo"):
        group.run(fails)
    assert group.run(lambda member: convert(nn.BatchNorm1d(2), member)(torch.randn(3, 2)).shape) == [(3, 2)] * 2
