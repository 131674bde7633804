"""train() and compare(): the program is found, its lines are shown, and its exit codes become exceptions."""
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

import lockstep
from conftest import QUICKSTART, SMALL
from lockstep import _program, _toml

AS_DICT = {"run": {"max_iters": 4, "log_every": 2}, "data": {"layout": "streets", "size": [32, 32], "train_images": 16,
                                                            "val_images": 4},
           "batch": {"global": 4}, "model": {"width": 4, "depth": 2}}


def test_a_dictionary_is_a_configuration(program, tmp_path):
    said = []
    run = lockstep.train(AS_DICT, output=tmp_path / "run", devices="cpu:2", settings={"bn": {"mode": "sync"}, "run.name": "it's \"q\""},
                         progress=said.append)
    assert run.mode == "sync" and run.config["run"]["name"] == "it's \"q\"" and run.config["batch"]["global"] == 4
    assert any("lockstep 0" in line for line in said) and not any("\n" in line for line in said)
    losses = [loss for loss in ({"type": "cross_entropy"}, {"type": "dice", "weight": 0.5})]
    two = lockstep.train({"loss": losses, **AS_DICT}, output=tmp_path / "two", devices="cpu:1", progress=False)
    assert [loss["type"] for loss in two.config["loss"]] == ["cross_entropy", "dice"]


def test_compare_again_with_more_seeds(program, tmp_path, capfd):
    arguments = {"output": tmp_path / "compare", "devices": "cpu:2", "settings": SMALL, "images": False}
    first = lockstep.compare(QUICKSTART, seeds=1, **arguments)
    assert "[2/2] sync seed 0" in capfd.readouterr().err
    assert first.seeds == [0] and first.differences[0].interval is None
    again = lockstep.compare(QUICKSTART, seeds=2, progress=False, **arguments)
    assert again.seeds == [0, 1] and again.cells["local"].by_seed[0] == first.cells["local"].by_seed[0]
    shown = capfd.readouterr()
    assert shown.err == "" and shown.out == ""
    assert str(again) == "\n".join([f"{again.best.claim}.", f"{again.best.cost}.", again.answers, *again.verdicts])


def test_exit_codes(program, tmp_path, monkeypatch):
    def error(kind, code, message, **settings):
        arguments = {"output": tmp_path / f"run{code}", "devices": "cpu:2", "progress": False}
        with pytest.raises(kind, match=message) as caught:
            lockstep.train(QUICKSTART, settings={**SMALL, **settings}, **arguments)
        assert type(caught.value) is kind and caught.value.exit_code == code and caught.value.command[1] == "train"
        assert str(caught.value) == caught.value.message and "lockstep: error" not in caught.value.message

    error(lockstep.ConfigError, 2, "bn.mode", **{"bn.mode": "synk"})
    error(lockstep.DataError, 3, "is not a folder",
          **{"data.layout": "folder", "data.root": str(tmp_path / "nowhere"), "data.num_classes": 2})
    error(lockstep.NonFiniteError, 4, "the loss of replica 0 .* the weights were not changed",
          **{"optim.lr": 1e30, "run.max_iters": 40})
    monkeypatch.setenv("LOCKSTEP_FAULT", "skip:rank=1,step=1,call=2")
    error(lockstep.ReplicaError, 5, "rank|replica", **{"bn.mode": "sync"})


def test_a_mode_that_cannot_train_leaves_the_others(program, tmp_path):
    with pytest.raises(lockstep.ProgramFailure, match="local, seed 0, cannot train: .*more than one value per channel") as caught:
        lockstep.compare(QUICKSTART, seeds=1, output=tmp_path / "compare", devices="cpu:4", images=False, progress=False,
                         settings={**SMALL, "model.depth": 6})
    assert list(caught.value.comparison.cells) == ["sync"] and caught.value.comparison.failed[0]["mode"] == "local"


def test_an_interrupt_saves(program, tmp_path):
    folder = tmp_path / "run"

    def interrupt():
        deadline = time.monotonic() + 60
        while not (folder / "scalars.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        import _thread
        _thread.interrupt_main()
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(lockstep.InterruptedRunError) as caught:
        lockstep.train(QUICKSTART, output=folder, devices="cpu:1", settings={**SMALL, "run.max_iters": 1000000}, progress=False)
    assert caught.value.exit_code == 130
    run = lockstep.read_run(folder)
    assert run.status == "interrupted"
    steps = run.events[-1]["step"]
    resumed = lockstep.train(QUICKSTART, output=folder, devices="cpu:1", resume=True, progress=False,
                             settings={**SMALL, "run.max_iters": steps + 2})
    assert resumed.status == "done" and resumed.summary["iterations"] == steps + 2


def fake_program(folder, monkeypatch, script):
    fake = folder / "fake"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("LOCKSTEP_PROGRAM", str(fake))


@pytest.mark.parametrize("end, kind", [("kill -INT $$", lockstep.InterruptedRunError), ("trap 'exit 0' INT; kill -INT $$", KeyboardInterrupt),
                                       ("trap 'exit 130' INT; kill -INT $$", lockstep.InterruptedRunError)])
def test_an_interrupt_is_one_whatever_the_program_makes_of_it(end, kind, tmp_path, monkeypatch):
    fake_program(tmp_path, monkeypatch, end.replace("kill", "echo begun >&2; kill"))  # what is trapped is so by then

    def interrupted(line):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt) as caught:
        lockstep.evaluate("runs/a", progress=interrupted)
    assert type(caught.value) is kind and "ended by signal" not in str(caught.value)


@pytest.mark.parametrize("none", [None, "", b"runs/a", 3])
@pytest.mark.parametrize("call", [
    lambda path: lockstep.train({}, output=path), lambda path: lockstep.train(path, output="a"), lambda path: lockstep.compare({}, output=path),
    lockstep.evaluate, lockstep.diagnose, lockstep.plan, lockstep.check_data, lockstep.report, lockstep.read_run, lockstep.read_comparison,
    lambda path: lockstep.predict("a", path, output="b"), lambda path: lockstep.predict("a", "b", output=path),
    lambda path: lockstep.export("a", path), lambda path: lockstep.evaluate("a", config=path) if path is not None else lockstep.plan(path)])
def test_what_is_no_path_is_refused(call, none, tmp_path, monkeypatch):
    fake_program(tmp_path, monkeypatch, "exit 1")
    with pytest.raises(lockstep.ConfigError, match="expected a path, such as .*, got"):
        call(none)


@pytest.mark.parametrize("seeds", ["2", 2.0, -1, 0, [], [-1, 0], [0.0], None])
def test_seeds_are_whole_numbers(seeds):
    with pytest.raises(lockstep.ConfigError, match=r"expected seeds=3 for three of them, or seeds=\[3, 4\] .* got") as caught:
        lockstep.compare({}, output="a", seeds=seeds)
    assert isinstance(caught.value, ValueError) and str(caught.value).endswith(f"got {seeds!r}")


def test_words_that_python_has(program, tmp_path, capfd, monkeypatch):
    found = lockstep.compare(QUICKSTART, output=tmp_path / "compare", modes="local,sync", seeds=1, devices="cpu:2", settings=SMALL,
                             images=False, progress=False)
    assert list(found.cells) == ["local", "sync"]
    others = lockstep.compare(QUICKSTART, output=tmp_path / "compare", seeds=[3, 4], devices="cpu:2", settings=SMALL, images=False,
                              progress=False)
    assert others.seeds == [3, 4] and others.run("sync", 4).seed == 4
    with pytest.raises(ValueError, match=r"follow one another, .* got \[0, 2\]"):
        lockstep.compare(QUICKSTART, output=tmp_path / "compare", seeds=[0, 2])
    with pytest.raises(lockstep.ConfigError, match=r"expected images_per_device=1 or .* got \[\]"):
        lockstep.diagnose(QUICKSTART, images_per_device=[])
    with pytest.raises(ValueError, match='such as "cpu:2" .* got 2'):
        lockstep.train(QUICKSTART, output=tmp_path / "run", devices=2)
    with pytest.raises(lockstep.ConfigError, match=r'^settings=\{"bn.mode": "synk"\}'):
        lockstep.train(QUICKSTART, output=tmp_path / "run", settings={"bn.mode": "synk"}, progress=False)
    with pytest.raises(lockstep.ConfigError, match="resume=True"):
        for _ in range(2):
            lockstep.train(QUICKSTART, output=tmp_path / "run", devices="cpu:1", settings=SMALL, progress=False)
    assert lockstep.train(QUICKSTART, output=tmp_path / "run", exist_ok=True, devices="cpu:1", settings=SMALL, progress=False).status == "done"
    monkeypatch.setitem(sys.modules, "ipykernel", None)  # a notebook shows stderr as an error
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    lockstep.train(QUICKSTART, output=tmp_path / "other", exist_ok=True, devices="cpu:1", settings=SMALL)
    shown = capfd.readouterr()
    assert "lockstep 0" in shown.out and shown.err == ""


def test_a_notebook_shows_one_bar(monkeypatch, capfd):
    from lockstep._progress import teller
    bars = []

    class Shown:
        def update(self, page):
            bars.append(page)

    def display(page, display_id):
        bars.append(page)
        return Shown()
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=str, display=display))
    tell = teller(True)
    for line in ("begins", "Iter(train) [2/4] <loss>", "[4/4] ends"):
        tell(line)
    assert bars == ['<progress value="2" max="4"></progress> [2/4] &lt;loss&gt;', '<progress value="4" max="4"></progress> [4/4] ends']
    assert capfd.readouterr() == ("begins\n", "")


def test_where_the_program_is_looked_for(tmp_path, monkeypatch):
    def executable(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
        path.chmod(0o755)
        return path
    named = executable(tmp_path / "named", b"\x7fELF")
    bundled = executable(tmp_path / "package/bin/lockstep", b"\x7fELF")
    script = executable(tmp_path / "scripts/lockstep", b"#!/usr/bin/python3\n")
    on_path = executable(tmp_path / "path/lockstep", b"\x7fELF")
    monkeypatch.setenv("PATH", os.pathsep.join([str(script.parent), str(on_path.parent)]))
    monkeypatch.setenv("LOCKSTEP_PROGRAM", str(named))
    monkeypatch.setattr(_program, "bundled_program", lambda: bundled)
    assert _program.find_program() == str(named)
    monkeypatch.delenv("LOCKSTEP_PROGRAM")
    assert _program.find_program() == str(bundled)
    monkeypatch.setattr(_program, "bundled_program", lambda: tmp_path / "none")
    assert _program.find_program() == str(on_path)  # and not the console script, which would call itself
    monkeypatch.setenv("PATH", str(script.parent))
    with pytest.raises(lockstep.ProgramNotFoundError, match="LOCKSTEP_PROGRAM is not set, .*PATH has none. Build it"):
        lockstep.train({}, output=tmp_path / "run")
    monkeypatch.setenv("LOCKSTEP_PROGRAM", str(tmp_path / "gone"))
    with pytest.raises(lockstep.ProgramNotFoundError, match="which is no program"):
        lockstep.compare({}, output=tmp_path / "run")


def test_the_module_is_the_program(program):
    for arguments, code in ((["--version"], 0), (["trian"], 2)):
        own = subprocess.run([sys.executable, "-m", "lockstep", *arguments], capture_output=True, text=True)
        theirs = subprocess.run([program, *arguments], capture_output=True, text=True)
        assert (own.returncode, own.stdout, own.stderr) == (code, theirs.stdout, theirs.stderr)
    without = subprocess.run([sys.executable, "-m", "lockstep"], capture_output=True, text=True,
                             env={**os.environ, "LOCKSTEP_PROGRAM": "/nowhere"})
    assert without.returncode == 1 and "lockstep: error: LOCKSTEP_PROGRAM is /nowhere" in without.stderr


def test_a_program_that_is_killed(tmp_path, monkeypatch):
    fake_program(tmp_path, monkeypatch, "echo last words >&2; kill -9 $$")
    with pytest.raises(lockstep.ProgramFailure, match="ended by signal 9 .SIGKILL.; its last lines:\nlast words"):
        lockstep.train({}, output=tmp_path / "run", progress=False)


def test_toml_is_read_as_it_was_meant(tmp_path):
    numpy = pytest.importorskip("numpy")
    tables = {"loss": [{"type": "dice", "weight": 0.5}], "run": {"name": "ä\"\\\n\x7f", "seed": 3, "flag": True},
              "data": {"size": (4, 5), "mean": numpy.array([0.5, 1e-30]), "root": Path("a/b"), "augment": {"hflip": 0.0}},
              "odd key": {"a.b": float("inf")}}
    (tmp_path / "a.toml").write_text(_toml.write_toml(tables), encoding="utf-8")
    assert _toml.read_toml(tmp_path / "a.toml") == {
        "loss": [{"type": "dice", "weight": 0.5}], "run": {"name": "ä\"\\\n\x7f", "seed": 3, "flag": True},
        "data": {"size": [4, 5], "mean": [0.5, 1e-30], "root": "a/b", "augment": {"hflip": 0.0}},
        "odd key": {"a.b": float("inf")}}
    with pytest.raises(TypeError, match="got NoneType: None; leave a key out"):
        _toml.write_toml({"run": {"name": None}})
