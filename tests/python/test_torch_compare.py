"""lockstep.torch.compare(): a training function of one's own, paired by seed; and what ends up in its folder."""
import copy
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import lockstep  # noqa: E402
from lockstep import LockstepError, ProgramNotFoundError  # noqa: E402
from lockstep.torch import compare, evaluate, own_statistics  # noqa: E402


def data(images):
    random = torch.Generator().manual_seed(5)
    x = torch.randn(images, 3, 8, 8, generator=random) + 2 * torch.randn(images, 3, 1, 1, generator=random)
    return x, (x[:, 0] > x[:, 0].mean((1, 2), keepdim=True)).long()


def network():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))


def training(trial):
    torch.manual_seed(trial.seed)
    net = trial.convert(network())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = data(16)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(trial.seed)).split(4)
    for part in order:
        loss = nn.functional.cross_entropy(net.train()(x[part]), y[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trial.log(loss.item())
    trial.score(lambda model: evaluate(model, [data(8)], 2))


ARGUMENTS = {"global_batch": 4, "classes": ["ground", "thing"], "progress": False}


def test_it_ends_as_the_program_s_comparison(program, tmp_path):
    calls = []

    def counted(trial):
        calls.append((trial.mode, trial.seed))
        training(trial)
    said = []
    found = compare(counted, output=tmp_path, modes="local,sync,instance", seeds=2, **{**ARGUMENTS, "progress": said.append})
    assert calls == [(mode, seed) for seed in (0, 1) for mode in ("local", "sync", "instance")]
    assert said[0] == "[1/6] local-s0" and set(found.cells) == {"local", "sync", "instance"} and found.seeds == [0, 1]
    assert {"local by own", "sync by own"} <= set(found.rows) and (tmp_path / "report.html").exists()
    run = found.run("local", 1)
    assert found.rows["local by own"].by_seed != found.rows["local"].by_seed
    confusion = run.evaluations["confusion"][-1]
    iou = [confusion[c, c] / (confusion[c].sum() + confusion[:, c].sum() - confusion[c, c]) for c in (0, 1)]
    assert found.cells["local"].by_seed[1] == pytest.approx(50 * sum(iou)) == run.evaluations["mIoU"][-1]
    assert found.difference("sync", "local").by_seed[0] == pytest.approx(
        found.cells["sync"].by_seed[0] - found.cells["local"].by_seed[0])
    assert str(lockstep.read_comparison(tmp_path)) == str(found)
    again = compare(counted, output=tmp_path, modes=["local", "sync"], seeds=3, **ARGUMENTS)
    assert calls[6:] == [("local", 2), ("sync", 2)] and again.cells["local"].by_seed[1] == found.cells["local"].by_seed[1]


def test_evaluations_are_no_part_of_a_step(program, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(lockstep.torch.trial, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))

    def scored(model):
        now[0] += 100.0
        return evaluate(model, [data(8)], 2)

    def timed(trial):
        torch.manual_seed(trial.seed)
        net = trial.convert(network())
        for seconds in (5.0, 1.0, 2.0, 6.0):
            net.train()(data(4)[0])
            now[0] += seconds
            trial.log(1.0)
            trial.score(scored)
    found = compare(timed, output=tmp_path, seeds=1, **ARGUMENTS)
    end = json.loads((tmp_path / "sync-s0/events.jsonl").read_text().splitlines()[-1])["summary"]
    assert end["times"]["step"] == 3.0 and end["times"]["median_step"] == 2.0 and end["images_per_second"] == 2.0  # of 1, 2 and 6
    assert found.run("sync", 0).evaluations["seconds"][-1] == 100.0


def test_a_curve_and_its_trainings(program, tmp_path):
    found = compare(training, output=tmp_path, seeds=1, images_per_device=[1, 2], **ARGUMENTS)
    assert set(found.cells) == {"local(1)", "local(2)", "sync"} and found.curve.images_per_device == [1, 2, 4]  # of all images: sync
    assert len({tuple(cell.by_seed.values()) for cell in found.cells.values()}) > 1


def test_a_training_that_is_interrupted_goes_on(program, tmp_path):
    def stopped(trial):
        if trial.mode == "sync":
            raise KeyboardInterrupt
        training(trial)
    with pytest.raises(KeyboardInterrupt):
        compare(stopped, output=tmp_path, seeds=1, **ARGUMENTS)
    calls = []
    compare(lambda trial: (calls.append(trial.mode), training(trial)), output=tmp_path, seeds=1, **ARGUMENTS)
    assert calls == ["sync"]


@pytest.mark.parametrize("spoil, message", [
    (lambda trial, net: nn.init.normal_(net[0].weight) if trial.mode == "sync" else None, "sync-s0 has other initial weights than local-s0"),
    (lambda trial, net: net.train()(torch.full((4, 3, 8, 8), float(trial.mode == "sync"))), "sync-s0 has other images"),
    (lambda trial, net: net.train()(torch.zeros(3, 3, 8, 8)), r"batches of 4 images, the global batch, got 3; drop the last")])
def test_what_a_comparison_needs_is_checked(spoil, message, program, tmp_path):
    def spoiled(trial):
        torch.manual_seed(trial.seed)
        net = network()
        if "weights" in message:
            spoil(trial, net)
        net = trial.convert(net)
        if "weights" in message:
            net.train()(torch.zeros(4, 3, 8, 8))
        else:
            spoil(trial, net)
        trial.log(1.0)
        trial.score(lambda model: (torch.eye(2), 1.0))
    with pytest.raises(LockstepError, match=message):
        compare(spoiled, output=tmp_path, seeds=1, **ARGUMENTS)


def test_numbers_of_numpy_are_numbers(program, tmp_path):
    numpy = pytest.importorskip("numpy")
    found = compare(training, output=tmp_path, seeds=numpy.arange(2), images_per_device=numpy.array([1, 2]), progress=False,
                    global_batch=numpy.int64(4), classes=numpy.int64(2))
    assert found.seeds == [0, 1] and set(found.cells) == {"local(1)", "local(2)", "sync"}


@pytest.mark.parametrize("option", [{"seeds": "2"}, {"seeds": 2.0}, {"seeds": 0}, {"seeds": []}, {"seeds": [0, -1]}, {"global_batch": 4.0},
                                    {"images_per_device": 1.5}, {"images_per_device": "1"}, {"classes": 2.0}, {"classes": 1}, {"classes": ["thing"]}, {"output": None}])
def test_other_numbers_are_refused_before_anything_trains(option, program, tmp_path):
    with pytest.raises(lockstep.ConfigError, match=rf"expected .*{'path' if 'output' in option else next(iter(option))}.*, got"):
        compare(lambda trial: pytest.fail("it trains"), **{"output": tmp_path, **ARGUMENTS, **option})


def test_the_folder_of_another_run_is_left(program, tmp_path):
    (tmp_path / "local-s0").mkdir()
    (tmp_path / "local-s0/events.jsonl").write_text('{"type": "header"}\n{"type": "end", "status": "failed"}\n')
    with pytest.raises(LockstepError, match="local-s0 holds another run"):
        compare(training, output=tmp_path, seeds=1, **ARGUMENTS)


def test_arguments_and_forgotten_calls(program, tmp_path, monkeypatch):
    for options, message in (({"modes": "locl"}, "modes of local, sync, instance, got locl"),
                             ({"images_per_device": 3}, "divide the global batch of 4"), ({"score": "dice"}, "mIoU")):
        with pytest.raises(ValueError, match=message):
            compare(training, output=tmp_path, **{**ARGUMENTS, **options})
    with pytest.raises(LockstepError, match=r"has to call trial.log\(loss\)"):
        compare(lambda trial: trial.convert(network()), output=tmp_path, **ARGUMENTS)
    with pytest.raises(LockstepError, match=r"confusion matrix of counts, 2 labels x classes, and a loss; got \[3, 3\]"):
        compare(lambda trial: (trial.convert(network()), trial.score(lambda model: (torch.eye(3), 0.0))), output=tmp_path, **ARGUMENTS)
    monkeypatch.setenv("LOCKSTEP_PROGRAM", str(tmp_path / "nowhere"))
    with pytest.raises(ProgramNotFoundError):
        compare(training, output=tmp_path, **ARGUMENTS)


def test_own_statistics(tmp_path):
    torch.manual_seed(0)
    net, x = network().double(), torch.randn(3, 3, 6, 6, dtype=torch.float64)
    net.train()(x)
    own = own_statistics(copy.deepcopy(net)).eval()
    alone = torch.cat([copy.deepcopy(net).train()(image[None]) for image in x])
    assert torch.allclose(own(x), alone) and torch.allclose(own.train()(x), alone)
    assert torch.equal(own[1].running_mean, net[1].running_mean)
    assert torch.equal(lockstep.torch.revert(own).eval()(x), net.eval()(x))
    traced = torch.jit.trace(own_statistics(copy.deepcopy(net)).eval(), x)
    assert torch.allclose(traced(x), alone)
    vectors = own_statistics(nn.Sequential(nn.BatchNorm1d(3))).eval()
    assert torch.allclose(vectors(x[:, :, 0, 0].float()), nn.BatchNorm1d(3).eval()(x[:, :, 0, 0].float()))
    with pytest.raises(LockstepError, match="0 sees one value per channel of an image"):
        own_statistics(nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False)))(torch.randn(2, 3))


def ranks_say(size, *arguments):
    """What each rank of a comparison over gloo has printed."""
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    file = Path(__file__).with_name("compare_rank.py")
    ranks = [subprocess.Popen([sys.executable, "-B", file, str(rank), str(size), *arguments], stdout=subprocess.PIPE, text=True)
             for rank in range(size)]
    said = [rank.communicate(timeout=280)[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks)
    return said


def test_processes_that_train_together_are_one_with_the_whole_batch(program, tmp_path):
    assert ranks_say(1, tmp_path / "one") == [""] and ranks_say(2, tmp_path / "two") == ["", ""]
    one, two = (lockstep.read_comparison(tmp_path / name) for name in ("one", "two"))
    for name, row in one.rows.items():
        for seed, score in row.by_seed.items():
            assert two.rows[name].by_seed[seed] == pytest.approx(score, abs=0.3), name
    assert two.run("sync", 0).evaluations["loss"][-1] == pytest.approx(one.run("sync", 0).evaluations["loss"][-1], rel=1e-5)
    assert two.run("local", 0).evaluations["loss"][-1] != pytest.approx(two.run("sync", 0).evaluations["loss"][-1], rel=1e-5)
    for said in ranks_say(2, tmp_path / "seeds", "seeds"):
        assert "local-s0: rank " in said and "has other initial weights" in said


@pytest.mark.parametrize("case, error", [("file", "NotADirectoryError: [Errno 20]"), ("progress", "Stays: out of paper"),
                                         ("score", "Stays: out of paper")])
def test_what_fails_on_rank_0_ends_all(case, error, program, tmp_path):
    if case == "file":
        (tmp_path / "runs").write_text("")
    said = ranks_say(2, tmp_path / "runs", case)
    assert error.split(": ")[1] in said[0] and said[1].startswith(f"rank 0 failed: {error}")


def altered(**changes):
    """`training`, a part of which is another: net(trial), call(net, x), score(model), step(optimizer, loss)."""
    def train(trial):
        torch.manual_seed(trial.seed)
        net = trial.convert(changes.get("net", network)())
        optimizer = torch.optim.SGD(net.parameters(), lr=changes.get("lr", 0.1))
        for x, y in zip(*(each.split(4) for each in data(8))):
            if trial.mode == "local" and changes.get("other_images"):
                x = x + 1
            loss = nn.functional.cross_entropy(changes.get("call", lambda net, x: net(x))(net.train(), x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            trial.log(loss.item())
        changes.get("look", lambda net: None)(net)
        trial.score(lambda model: evaluate(changes.get("wrapped", lambda model: model)(model), [data(8)], 2))
    return train


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, pixel_values=None, batch=None):
        return self.net(pixel_values if batch is None else batch["image"])


def by_name(net, x):
    return net(pixel_values=x)


def in_a_dictionary(net, x):
    return net(None, {"image": x})


@pytest.mark.parametrize("call", [by_name, in_a_dictionary])
def test_images_are_seen_however_they_are_given(call, program, tmp_path):
    wrapped = (lambda model: lambda x: call(model, x))
    if call is by_name and torch.__version__ < "2":
        with pytest.raises(LockstepError, match="called without images, or by a name"):
            compare(altered(net=Named, call=call, wrapped=wrapped), output=tmp_path, seeds=1, **ARGUMENTS)
        return
    with pytest.raises(LockstepError, match="has other images, or another order of them"):
        compare(altered(net=Named, call=call, wrapped=wrapped, other_images=True), output=tmp_path, seeds=1, **ARGUMENTS)


def test_a_network_that_is_not_called_itself_is_an_error(program, tmp_path):
    with pytest.raises(LockstepError, match="local-s0: 2 steps were logged, and the network that convert.* was called 0 times"):
        compare(altered(call=lambda net, x: net.forward(x)), output=tmp_path, seeds=1, **ARGUMENTS)


class Twice(nn.Module):
    """Two images in one batch, one behind the other, as for what has changed between them."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(8, 2, 1)

    def forward(self, x):
        return self.head(torch.cat(self.norm(self.conv(torch.cat([x, x.flip(0)]))).chunk(2), 1))


def test_slices_of_other_rows_than_images_are_an_error(program, tmp_path):
    with pytest.raises(LockstepError, match="norm sees 8 rows of 4 images"):
        compare(altered(net=Twice), output=tmp_path, seeds=1, **ARGUMENTS)


def test_a_mode_that_diverges_is_compared(program, tmp_path):
    found = compare(altered(lr=1e30), output=tmp_path, seeds=1, **ARGUMENTS)
    assert not found.run("sync", 0).evaluations["loss"][-1] < float("inf") and set(found.cells) == {"local", "sync"}


def test_copies_and_files_of_the_network_are_made_inside(program, tmp_path):
    import weakref
    made = []

    def look(net):
        assert not [each for each in made if each() is not None]  # of trainings before
        made.append(weakref.ref(net))
        copy.deepcopy(net).train()(torch.zeros(2, 3, 8, 8))
        torch.save(net, tmp_path / "net.pt")
    compare(altered(look=look), output=tmp_path / "runs", seeds=2, **ARGUMENTS)
    assert len(made) == 4


def test_evaluation_of_other_outputs():
    x, y = data(8)

    class Constant(nn.Module):
        def __init__(self, channels, says):
            super().__init__()
            self.channels, self.says = channels, says

        def forward(self, x):
            assert not self.training
            return torch.full((len(x), self.channels, 8, 8), self.says)
    matrix, loss = evaluate(Constant(1, 2.0).train(), [(x, y)], 2)  # sigmoid: all are class 1
    assert matrix.tolist() == [[0, int((y == 0).sum())], [0, int((y == 1).sum())]]
    assert loss == pytest.approx(nn.functional.binary_cross_entropy_with_logits(torch.full(y.shape, 2.0), y.float()).item())
    whole = evaluate(Constant(1, 2.0), [(x, y)], 2)
    for source in ((x, y), [x, y], {"image": x, "label": y}, ((x, y),), (x.numpy(), y.numpy())):
        assert [str(each) for each in evaluate(Constant(1, 2.0), source, 2)] == [str(each) for each in whole]
    of_set = evaluate(Constant(1, 2.0), torch.utils.data.TensorDataset(x, y), 2)
    assert torch.equal(of_set[0], whole[0]) and of_set[1] == pytest.approx(whole[1])
    for source, message in (([], "there are none"), ([x], r"\(images, labels\), got \[8, 3, 8, 8\]"), (3, "a data set, .* got int")):
        with pytest.raises(LockstepError, match=message):
            evaluate(Constant(1, 2.0), source, 2)
    for wrapped in (lambda found: {"out": found, "aux": found * 0}, lambda found: (found, None), lambda found: types.SimpleNamespace(logits=found)):
        assert str(evaluate(lambda x: wrapped(Constant(1, 2.0).eval()(x)), (x, y), 2)) == str(whole)  # as torchvision and others return them
    for model, source, message in ((lambda x: "logits", (x, y), "expected logits .* got str"),
                                   (Constant(2, 0.0), [{"picture": x}], "of 'picture'; call them 'image' and 'label'"),
                                   (Constant(2, 0.0), (x, y - 1), "got -1; if that does not count, write ignore_index=-1")):
        with pytest.raises(LockstepError, match=message):
            evaluate(model, source, 2)
    with pytest.raises(lockstep.ConfigError, match="classes=2 for one output channel, got 1"):
        evaluate(Constant(1, 2.0), (x, y), classes=1)
    for channels, classes in ((3, 2), (1, 3)):
        with pytest.raises(LockstepError, match=f"of {classes} classes from the model, got .8, {channels}, 8, 8."):
            evaluate(Constant(channels, 0.0), [(x, y)], classes)


def test_a_network_is_its_owner_s_again_afterwards(program, tmp_path):
    kept = []
    compare(altered(look=kept.append), output=tmp_path, seeds=1, **ARGUMENTS)
    for net in kept:
        assert net.train()(torch.zeros(3, 3, 8, 8)).shape == (3, 2, 8, 8)
