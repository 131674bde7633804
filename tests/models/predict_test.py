#!/usr/bin/env python3
"""`lockstep predict` against PyTorch: probabilities of a U-Net and of a ResNet, with flips, scales and resized images.

    predict_test.py LOCKSTEP

A training of a few steps, exported; PyTorch's own network is shown each image at every scale and mirrored, and averages
softmax of logits interpolated to the image's size. What `predict --probabilities` wrote must be equal, within rounding.
"""
import csv
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/oracle"), str(ROOT / "tools/measure")]

try:
    import numpy
    import torch
    import torch.nn.functional as F
    import torchvision
    from PIL import Image
except ImportError as error:
    print(f"SKIPPED: torchvision is not installed for {sys.executable} ({error}); tools/setup --dev installs it")
    sys.exit(0)

from safetensors_reader import read
from torch_unet import UNet

MEAN, STD = (0.25, 0.5, 0.625), (0.5, 0.25, 0.375)
DIVISOR = 4  # of a U-Net of depth 3
SIZES = ((37, 45), (29, 27), (41, 47))
# Of the distance of probabilities: the largest of all, and the mean. A pixel of a resized image that lies halfway between
# two values of 8 bits may be rounded either way, which moves what is around it, and hardly the mean.
SAME_SCALE, RESIZED, MEAN_BOUND = 1e-5, 3e-3, 1e-4
BOTH = {"flip": True, "scales": (0.5, 1, 1.5)}
STREETS = f"""[run]
max_iters = 20
[data]
layout = 'streets'
size = [40, 48]
train_images = 16
val_images = 1
mean = {list(MEAN)}
std = {list(STD)}
[batch]
global = 4
[model]
width = 4
depth = 3
[optim]
lr = 0.1
"""
SHAPES = f"""[run]
max_iters = 30
[data]
layout = 'shapes'
size = [24, 24]
train_images = 32
val_images = 1
mean = {list(MEAN)}
std = {list(STD)}
val_resize = 31
val_crop = [23, 25]
[batch]
global = 16
[model]
arch = 'resnet18'
"""


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} exits with {done.returncode}\n{done.stdout}{done.stderr}")


def trained(lockstep, folder, config, net):
    """A run of the configuration, and PyTorch's network with its weights."""
    (folder / "tiny.toml").write_text(config)
    run(lockstep, "train", folder / "tiny.toml", "-d", "cpu:2", "-o", folder / "run")
    run(lockstep, "export", "safetensors", folder / "run", "-o", folder / "net.safetensors")
    weights = {name: torch.tensor(array) for name, array in read(folder / "net.safetensors").items()}
    net.load_state_dict(weights, strict=True)
    return net.eval()


def write_images(folder):
    """Pictures with soft and sharp edges; [(path, pixels)]."""
    folder.mkdir()
    rng = numpy.random.default_rng(3)
    images = []
    for i, (height, width) in enumerate(SIZES):
        coarse = torch.tensor(rng.uniform(0, 255, (1, 3, 5, 6)))
        smooth = F.interpolate(coarse, (height, width), mode="bicubic").clamp(0, 255)[0].permute(1, 2, 0).numpy()
        pixels = smooth.round().astype(numpy.uint8)
        pixels[height // 3:height // 2, width // 4:] = rng.integers(0, 255, 3)
        images.append((folder / f"{i}.png", pixels))
        Image.fromarray(pixels).save(images[-1][0])
    return images


def resized(pixels, size):
    """8-bit pixels, rounded once."""
    x = torch.tensor(pixels.copy()).double().permute(2, 0, 1)[None]
    x = F.interpolate(x, size, mode="bilinear", align_corners=False, antialias=True)
    return (x + 0.5).floor()[0].permute(1, 2, 0).byte().numpy()


def network_input(pixels):
    x = (torch.tensor(pixels.copy()).float() / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
    return x.permute(2, 0, 1)[None]


def views_of(pixels, flip, scales):
    """(network's input, mirrored or not) of each view."""
    for scale in scales:
        size = tuple(int(numpy.floor(extent * scale + 0.5)) for extent in pixels.shape[:2])
        scaled = resized(pixels, size)
        yield network_input(scaled), False
        if flip:
            yield network_input(scaled[:, ::-1]), True


def pixel_probabilities(net, pixels, size, flip=False, scales=(1,)):
    """[classes, height, width] at `size`."""
    sums, count = 0, 0
    for x, mirrored in views_of(pixels, flip, scales):
        height, width = x.shape[2:]
        logits = net(F.pad(x, (0, -width % DIVISOR, 0, -height % DIVISOR)))[:, :, :height, :width]
        if (height, width) != size:
            logits = F.interpolate(logits, size, mode="bilinear", align_corners=False)
        probabilities = logits.softmax(1)[0]
        sums = sums + (probabilities.flip(2) if mirrored else probabilities)
        count += 1
    return (sums / count).numpy()


def image_probabilities(net, pixels, flip=False, scales=(1,)):
    said = [net(x).softmax(1)[0] for x, _ in views_of(pixels, flip, scales)]
    return (sum(said) / len(said)).numpy()


def cropped(pixels):
    """val_resize = 31, val_crop = [23, 25]."""
    factor = 31 / min(pixels.shape[:2])
    pixels = resized(pixels, tuple(int(numpy.floor(extent * factor + 0.5)) for extent in pixels.shape[:2]))
    top, left = (pixels.shape[0] - 23) // 2, (pixels.shape[1] - 25) // 2
    return pixels[top:top + 23, left:left + 25]


def options_of(flip=False, scales=()):
    return (["--flip"] if flip else []) + (["--scales", ",".join(map(str, scales))] if scales else [])


def is_near(what, ours, theirs, bound):
    distance = float(numpy.abs(ours - theirs).max())
    good = ours.dtype == numpy.float32 and ours.shape == theirs.shape and distance <= bound
    mean = float(numpy.abs(ours - theirs).mean())
    good &= mean <= MEAN_BOUND and bool(numpy.abs(ours.sum(0) - 1).max() < 1e-5)
    print(f"{what}: {'' if good else 'FAILED: '}{distance:.1e} from PyTorch's, mean {mean:.1e}", flush=True)
    return good


def check_map(path, probabilities):
    """Whether the palette PNG has the likeliest class of every pixel, and its colour."""
    with Image.open(path) as picture:
        labels = numpy.asarray(picture)
        good = picture.mode == "P" and picture.getpalette()[:3] == [128, 128, 128]  # the sky
    second, first = numpy.sort(probabilities, axis=0)[-2:]
    clear = first - second > 1e-6  # elsewhere rounding may decide
    return good and bool((labels == probabilities.argmax(0))[clear].all()) and clear.mean() > 0.99


def check_unet(lockstep, folder):
    net = trained(lockstep, folder, STREETS, UNet(width=4, depth=3, num_classes=11))
    images = write_images(folder / "images")
    good = True
    for name, augmentation, size in (("plain", {}, None), ("flip", {"flip": True}, None),
                                     ("scales", BOTH | {"flip": False}, None), ("both", BOTH, None),
                                     ("resized", {}, (24, 36)), ("resized, both", BOTH, (24, 36))):
        out = folder / name
        resize = ["-s", f"data.resize=[{size[0]},{size[1]}]"] if size else []
        run(lockstep, "predict", folder / "run", folder / "images", "-o", out, "--probabilities",
            *options_of(**augmentation), *resize)
        for path, pixels in images:
            ours = numpy.load(out / f"{path.stem}.npy")
            shown = resized(pixels, size or pixels.shape[:2])
            bound = RESIZED if size or "scales" in augmentation else SAME_SCALE
            theirs = pixel_probabilities(net, shown, pixels.shape[:2], **augmentation)
            good &= is_near(f"unet, {name}, {pixels.shape[1]}x{pixels.shape[0]}", ours, theirs, bound)
            if not check_map(out / path.name, ours):
                good = False
                print(f"unet, {name}: FAILED: {path.name} is not the likeliest classes")
    return good


def check_resnet(lockstep, folder):
    net = trained(lockstep, folder, SHAPES, torchvision.models.resnet18(num_classes=10))
    images = write_images(folder / "images")
    good = True
    for name, augmentation in (("plain", {}), ("both", BOTH)):
        out = folder / name
        run(lockstep, "predict", folder / "run", folder / "images", "-o", out, "--probabilities",
            *options_of(**augmentation))
        with open(out / "predictions.csv", newline="") as table:
            rows = list(csv.DictReader(table))
        for i, (path, pixels) in enumerate(images):
            ours = numpy.load(out / f"{path.stem}.npy")
            theirs = image_probabilities(net, cropped(pixels), **augmentation)
            good &= is_near(f"resnet18, {name}, {path.name}", ours, theirs, RESIZED)
            first = rows[5 * i]
            good &= first["image"] == str(path) and int(first["class"]) == ours.argmax() and first["rank"] == "1"
            good &= numpy.float32(first["probability"]) == ours.max()
    return good


def main():
    torch.set_num_threads(2)
    torch.set_grad_enabled(False)
    good = True
    for check in (check_unet, check_resnet):
        with tempfile.TemporaryDirectory() as name:
            good &= check(sys.argv[1], pathlib.Path(name))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
