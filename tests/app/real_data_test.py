#!/usr/bin/env python3
"""From files to a report with images that nobody here drew: `data check`, `compare`, the report and `predict`.

    real_data_test.py LOCKSTEP [FOLDER]

FOLDER keeps the sets with their configurations, and the runs. Two sets that come inside of packages, written as PNG files in layout `folder`: slices of nilearn's MNI152 brain (gray and
white matter) and tiles of stardist's microscopy image (nuclei as black-and-white masks). What `data check` counts, numpy
counts, too; from the class maps of `predict` come the evaluation's IoU. Says SKIPPED for a set whose packages are missing:
python3 -m venv .real && .real/bin/pip install numpy pillow tifffile && .real/bin/pip install --no-deps nilearn stardist
"""
import gzip
import importlib.util
import json
import math
import re
import sys
import tempfile
from pathlib import Path

from small_run import lockstep

try:
    import numpy
    from PIL import Image
except ImportError as error:
    print(f"SKIPPED: {sys.executable} lacks what the images are written with ({error})")
    sys.exit(0)

CONFIG = """[run]
max_iters = 40
log_every = 10
[data]
layout = "folder"
root = {root}
num_classes = {number}
classes = {classes}
mask_values = {mask_values}
mean = {mean}
std = {std}
[data.augment]
crop = [96, 96]
hflip = 0.5
[batch]
global = 4
[model]
width = 8
depth = 3
[optim]
lr = 0.05
"""


def package(name):
    """The package's folder, found without importing it: only its files are wanted."""
    found = importlib.util.find_spec(name)
    return Path(found.submodule_search_locations[0]) if found else None


def volume(name):
    """A volume of nilearn's package: NIfTI-1, 197x233x189 bytes in Fortran's order after 352 of header."""
    path = package("nilearn") / "datasets/data" / f"mni_icbm152_{name}_tal_nlin_sym_09a_converted.nii.gz"
    return numpy.frombuffer(gzip.open(path).read(), numpy.uint8, offset=352).reshape((197, 233, 189), order="F")


def brain():
    """Every second axial slice that has both tissues: (name, is it for validation, image, classes)."""
    t1, gray, white = map(volume, ("t1", "gm", "wm"))
    for z in range(26, 147, 2):
        classes = numpy.where(white[:, :, z] > 127, 2, gray[:, :, z] > 127)
        # 151x191: the network's divisor, 4, does not divide them
        yield f"z{z:03}", z // 2 % 4 == 3, t1[23:174, 22:213, z].T[::-1], classes[23:174, 22:213].T[::-1]


def nuclei():
    """Sixteen tiles of 128x128; every instance becomes white."""
    import tifffile

    image, instances = (tifffile.imread(package("stardist") / "data/images" / f"{name}.tif") for name in ("img2d", "mask2d"))
    for y in range(4):
        for x in range(4):
            tile = slice(128 * y, 128 * y + 128), slice(128 * x, 128 * x + 128)
            yield f"tile{y}{x}", (y + x) % 4 == 3, image[tile], 255 * (instances[tile] > 0)


def write(samples, root):
    """Layout `folder`. Returns the masks as they were written, {split: {name: pixels}}."""
    masks = {"train": {}, "val": {}}
    for name, for_validation, image, mask in samples:
        split = "val" if for_validation else "train"
        for kind, pixels in (("images", image), ("masks", mask)):
            (root / kind / split).mkdir(parents=True, exist_ok=True)
            Image.fromarray(numpy.ascontiguousarray(pixels, numpy.uint8)).save(root / kind / split / f"{name}.png")
        masks[split][name] = mask
    return masks


def check(holds, what):
    if not holds:
        sys.exit(what)


def intersection_over_union(predicted, labels, classes):
    """Percent, of each class, over all images together."""
    both = [sum(numpy.sum((p == c) & (labels[name] == c)) for name, p in predicted.items()) for c in range(classes)]
    either = [sum(numpy.sum((p == c) | (labels[name] == c)) for name, p in predicted.items()) for c in range(classes)]
    return [100 * b / e for b, e in zip(both, either)]


def check_data(config, labels, classes):
    said = json.loads(lockstep("data", "check", config, "--json"))
    check(said["classes"] == classes and said["warnings"] == [], f"data check says {said['classes']}, {said['warnings']}")
    for split, masks in labels.items():
        pixels = numpy.concatenate([mask.ravel() for mask in masks.values()])
        height, width = next(iter(masks.values())).shape
        expected = {"images": len(masks), "sizes": [{"height": height, "width": width, "images": len(masks)}],
                    "class_labels": numpy.bincount(pixels, minlength=len(classes)).tolist(), "ignored": 0,
                    "class_images": [sum(bool(numpy.any(mask == c)) for mask in masks.values()) for c in range(len(classes))]}
        for key, value in expected.items():
            check(said[split][key] == value, f"data check, {split}: {key} is {said[split][key]}, expected {value}")
    return said["train"]["mean"], said["train"]["std"]


def check_report(runs):
    """Every score of comparison.json stands in the page."""
    page = (runs / "report.html").read_text(encoding="utf-8")
    values = [float(value) for value in re.findall(r'<data value="([^"]+)"', page)]
    modes = json.loads((runs / "comparison.json").read_text())["modes"]
    check([mode["mode"] for mode in modes] == ["local", "sync"], f"modes: {modes}")
    for mode in modes:
        for wanted in [mode["mIoU"]["mean"], mode["val_loss"]["mean"], *mode["mIoU_by_seed"].values()]:
            check(any(math.isclose(value, wanted, rel_tol=1e-9) for value in values), f"{mode['mode']}: {wanted} is not in the page")


def check_predictions(run, images, labels, classes, folder):
    """The maps of the validation images have the evaluation's IoU, which says much more than "background everywhere"."""
    lockstep("predict", run, images, "-d", "cpu:2", "-o", folder)
    predicted = {name: numpy.asarray(Image.open(folder / f"{name}.png")) for name in labels}
    found = intersection_over_union(predicted, labels, len(classes))
    last = [line for line in map(json.loads, (run / "scalars.json").read_text().splitlines()) if line["mode"] == "val"][-1]
    for name, value in zip(classes, found):
        check(math.isclose(value, last["IoU." + name], rel_tol=1e-9), f"{run.name}, {name}: maps say {value}, the run {last}")
    nothing = {name: numpy.zeros_like(mask) for name, mask in labels.items()}
    blind = sum(intersection_over_union(nothing, labels, len(classes))) / len(classes)
    score = sum(found) / len(classes)
    print(f"{run.parent.name}, {run.name}: mIoU {score:.2f}; background everywhere has {blind:.2f}")
    check(score > blind + 0.5 * (100 - blind), f"{run}: mIoU {score}, little better than background everywhere, {blind}")


def run_set(name, samples, classes, folder, binary=False):
    root = folder / name
    labels = {split: {n: mask // 255 if binary else mask for n, mask in masks.items()} for split, masks in write(samples, root).items()}
    config, runs = root / "config.toml", folder / "runs" / name

    def configure(mean, std):
        config.write_text(CONFIG.format(root=json.dumps(str(root)), number=len(classes), classes=json.dumps(classes),
                                        mask_values='"binary"' if binary else '"classes"', mean=mean, std=std))

    configure([0.5] * 3, [0.25] * 3)
    configure(*check_data(config, labels, classes))
    lockstep("compare", config, "-d", "cpu:4", "--modes", "local,sync", "--seeds", 2, "-o", runs)
    check_report(runs)
    for mode in ("local", "sync"):
        check_predictions(runs / f"{mode}-s0", root / "images/val", labels["val"], classes, folder / f"{name}-{mode}")


with tempfile.TemporaryDirectory() as temporary:
    name = sys.argv[2] if len(sys.argv) > 2 else temporary
    if package("nilearn"):
        run_set("brain", brain(), ["background", "gray", "white"], Path(name))
    else:
        print(f"brain SKIPPED: {sys.executable} has no nilearn")
    if package("stardist") and package("tifffile"):
        run_set("nuclei", nuclei(), ["ground", "nucleus"], Path(name), binary=True)
    else:
        print(f"nuclei SKIPPED: {sys.executable} has no stardist or no tifffile")
