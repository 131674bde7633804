"""evaluate(), predict(), export(), diagnose(), plan(), check_data(), report(): the program's commands, and what they say."""
import json
import subprocess

import pytest

import lockstep
from conftest import SMALL

CONFIG = {"run": {"max_iters": 4, "log_every": 2}, "data": {"layout": "streets", "size": [32, 32], "train_images": 16, "val_images": 4},
          "batch": {"global": 4}, "model": {"width": 4, "depth": 2}}


@pytest.fixture(scope="module")
def run(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands") / "run"
    lockstep.train(CONFIG, output=folder, devices="cpu:2", progress=False)
    return folder


def test_scores_are_the_command_s(program, run):
    found = lockstep.evaluate(run, devices="cpu:1", per_image=True)
    said = subprocess.run([program, "eval", run, "-d", "cpu:1", "--per-image", "--json"], capture_output=True, text=True, check=True)
    assert {**found, "seconds": 0} == {**json.loads(said.stdout), "seconds": 0} and found.mIoU == found["mIoU"] and len(found.per_image) == 4
    own = lockstep.evaluate(run / "ckpt/last.safetensors", config=run / "config.toml", settings={"bn.eval_stats": "own"})
    assert own.eval_stats == "own" and own.loss != found.loss
    assert "mIoU" in found._repr_html_() and "confusion" not in found._repr_html_()
    with pytest.raises(AttributeError, match="no 'mIuO' among checkpoint"):
        found.mIuO


def test_what_a_notebook_shows(program, run, tmp_path):
    assert "seed 0, done</p><table>" in lockstep.read_run(run)._repr_html_() and "mIoU" in lockstep.read_run(run)._repr_html_()
    found = lockstep.compare(CONFIG, output=tmp_path / "compare", seeds=1, devices="cpu:2", images=False, progress=False)
    shown = found._repr_html_()
    assert f"<b>{found.best.claim}.</b>" in shown and "<td>sync by own</td>" in shown and f"<li>{found.verdicts[0]}</li>" in shown


def test_maps_files_and_pages(program, run, tmp_path):
    subprocess.run([program, "data", "preview", run / "config.toml", "-n", "1", "-o", tmp_path / "photos"], capture_output=True, check=True)
    photo = tmp_path / "photos/000_image.png"
    maps = lockstep.predict(run, photo, output=tmp_path / "maps", overlay=False, probabilities=True, progress=False)
    assert [image["image"] for image in maps.images] == [str(photo)]
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == ["000_image.npy", "000_image.png"]
    (tmp_path / "bad.jpg").write_text("no image")
    with pytest.raises(lockstep.DataError, match="^1 of 2 images failed:\n  .*bad.jpg: expected a JPEG"):
        lockstep.predict(run, [photo, tmp_path / "bad.jpg"], output=tmp_path / "some", progress=False)
    with pytest.raises(ValueError, match="^expected images: files and folders of them, got none"):
        lockstep.predict(run, [], output=tmp_path / "none")
    with pytest.raises(ValueError, match="^expected folders of runs or comparisons, got none"):
        lockstep.report([])
    with pytest.raises(lockstep.LockstepError, match="000_image"):
        lockstep.predict(run, [photo], output=tmp_path / "maps", overlay=False, progress=False)
    assert lockstep.export(run, tmp_path / "net.onnx").file == str(tmp_path / "net.onnx") and (tmp_path / "net.onnx").exists()
    assert lockstep.export(run, tmp_path / "net.safetensors").format == "safetensors"
    with pytest.raises(ValueError, match=r"ends with .onnx or .safetensors, got net.pth"):
        lockstep.export(run, "net.pth")
    assert lockstep.report(lockstep.read_run(run), output=tmp_path / "page.html", images=False) == tmp_path / "page.html"
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_before_a_training(program, run):
    planned = lockstep.plan(CONFIG, steps=1, devices="cpu:2", settings={"bn.mode": "sync"})
    assert planned.steps == 4 and planned.bn_mode == "sync" and len(planned.devices) == 2
    for target in (CONFIG, lockstep.read_run(run)):
        verdicts = lockstep.diagnose(target, images_per_device=[1, 2], devices="cpu:1").by_images_per_device
        assert [each["images_per_device"] for each in verdicts] == [1, 2] and all(each["verdict"] for each in verdicts)
    with pytest.raises(ValueError, match="^steps: expected an integer"):
        lockstep.plan(CONFIG, steps=0)
    with pytest.raises(ValueError, match="^images: expected an integer"):
        lockstep.check_data(CONFIG, images=0)
    assert lockstep.check_data(CONFIG, images=3).train["examined"] == 3
    with pytest.raises(lockstep.DataError, match="is not a folder"):
        lockstep.check_data({**CONFIG, "data": {"layout": "folder", "root": "nowhere", "num_classes": 2}})
    with pytest.raises(ValueError, match="devices as a word"):
        lockstep.plan(CONFIG, devices=2, settings=SMALL)
