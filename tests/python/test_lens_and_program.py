"""lens() against `lockstep diagnose`: of the same weights and the same images they tell the same figures."""
import re

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")

import lockstep  # noqa: E402
import lockstep.torch  # noqa: E402
from conftest import QUICKSTART, ROOT  # noqa: E402
from small_unet import UNet  # noqa: E402

IMAGES = 16
SETTINGS = {"run.max_iters": 12, "run.log_every": 6, "data.size": [48, 64], "data.train_images": 32, "data.val_images": 4}
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # data.mean and data.std, unless set


@pytest.fixture(scope="module")
def run(program, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lens") / "run"
    return lockstep.train(QUICKSTART, output=folder, devices="cpu:2", settings=SETTINGS, progress=False)


@pytest.fixture(scope="module")
def batches(run, program):
    """The images that diagnose looks at, in its order, as `data preview` writes them: pairs of images and labels."""
    import subprocess
    preview = run.path.parent / "preview"
    subprocess.run([program, "data", "preview", run.path / "config.toml", "-n", str(IMAGES), "-o", preview], check=True,
                   capture_output=True)

    def picture(name):
        return numpy.asarray(Image.open(preview / name))
    images = numpy.stack([picture(f"{number:03}_image.png") for number in range(IMAGES)])
    labels = numpy.stack([picture(f"{number:03}_labels.png") for number in range(IMAGES)])
    values = ((images / 255 - MEAN) / STD).astype(numpy.float32)
    return [(torch.from_numpy(values.transpose(0, 3, 1, 2).copy()), torch.from_numpy(labels.astype(numpy.int64)))]


# As the program is told where weights come from: a run's are trained, and those of a backbone are pretrained.
def targets(run, weights):
    if weights == "trained":
        return [run.path]
    return [run.path / "config.toml", "-s", f"model.backbone_weights={run.path / 'ckpt/last.safetensors'}"]


def diagnosed(run, batches, **arguments):
    net = UNet(width=8, depth=3, classes=11)
    net.load_state_dict(run.state_dict("last", as_torch=True))
    return lockstep.torch.lens(net, batches, images_per_device=(1, 2, 4), images=IMAGES, **arguments)


@pytest.mark.parametrize("weights", ["trained", "pretrained"])
def test_the_same_figures_to_1e_5(run, batches, json_of, weights):
    theirs = json_of("diagnose", *targets(run, weights), "--images", IMAGES, "--images-per-device", "1,2,4")
    ours = diagnosed(run, batches, global_batch=4, weights=weights).to_dict()
    assert set(theirs) - set(ours) == {"left_out", "sync_layers", "seconds"}
    assert ours["size"] == theirs["size"] and ours["images"] == theirs["images"] == IMAGES
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert len(ours["by_images_per_device"]) == len(theirs["by_images_per_device"]) == 3
    for own, other in zip(ours["by_images_per_device"], theirs["by_images_per_device"]):
        assert own["verdict"] == other["verdict"] and own["reason"] == other["reason"]
        assert set(own) == {*other, "own_loss"}
        assert [layer["layer"] for layer in own["layers"]] == [layer["layer"] for layer in other["layers"]]
        assert len(own["layers"]) == 10
        for own_layer, other_layer in zip(own["layers"], other["layers"]):
            assert same_layer(own_layer, other_layer), own_layer
        for name in ("values", "missed", "logit_noise", "logit_disparity", "loss", "running_loss"):
            assert own[name] == pytest.approx(other[name], rel=1e-5), name
        assert own["disparity"] == pytest.approx(other["disparity"], abs=1e-5)
        assert own["changed"] == pytest.approx(other["changed"], abs=5 / (IMAGES * 48 * 64))  # a tie goes either way


def same_layer(own, other):
    assert set(own) == set(other)
    return all(own[name] == other[name] if isinstance(own[name], str) else own[name] == pytest.approx(other[name], rel=1e-5)
               for name in own)


def test_layers_are_ranked_alike(run, batches, json_of):
    theirs = json_of("diagnose", run.path, "--images", IMAGES, "--images-per-device", "1,2,4", "--top", 3)
    assert diagnosed(run, batches).layers_apart(3) == theirs["sync_layers"]


@pytest.mark.parametrize("weights", ["trained", "pretrained"])
def test_the_text_is_the_program_s(run, batches, program, weights):
    import subprocess
    said = subprocess.run([program, "diagnose", *targets(run, weights), "--images", str(IMAGES), "--images-per-device", "1,2,4",
                           "--layers"], capture_output=True, text=True, check=True).stdout
    ours = without_column(diagnosed(run, batches, global_batch=4, weights=weights).text(layers=True), "by own statistics")
    tables = [line for line in said.splitlines() if line.startswith("|") or "per device: " in line]
    assert [line for line in ours if line.startswith("|") or "per device: " in line] == tables


def without_column(text, name):
    """The lines of a text, its first table without a column that only the lens has."""
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    place = [cell.strip() for cell in lines[first].split("|")].index(name)
    for number in range(first, lines.index("", first)):
        cells = lines[number].split("|")
        lines[number] = "|".join(cells[:place] + cells[place + 1:])
    return lines


@pytest.mark.parametrize("name", ["MISSED", "MISSED_ALONE", "UNFIT", "MIXTURE", "ALIKE", "APART", "KINDS"])
def test_a_threshold_is_the_program_s(name):
    from lockstep.torch import noise
    source = (ROOT / "src/train/diagnosis/diagnosis.h").read_text()
    number, divisor = re.search(rf"k{name.title().replace('_', '')} = ([0-9.]+)(?: / ([0-9.]+))?;", source).groups()
    assert getattr(noise, name) == float(number) / float(divisor or 1)


def test_weights_come_from_where_the_program_has_them():
    from lockstep.torch.noise import ORIGINS
    source = (ROOT / "src/train/diagnosis/diagnosis.h").read_text()
    values = re.search(r"enum class WeightsOrigin : [^{]*{(.*?)};", source, re.DOTALL).group(1)
    assert tuple(name.lower() for name in re.findall(r"\bk(\w+),", values)) == ORIGINS
