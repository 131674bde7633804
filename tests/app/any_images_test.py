#!/usr/bin/env python3
"""Images as microscopes and satellites write them: a set of 16-bit TIFF with five channels, from the folder to predictions.

    any_images_test.py LOCKSTEP
"""
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import tomllib
import zlib

from small_run import lockstep, overrides

SIDE, CHANNELS = 32, 5
TRAINING = ["model.width=4", "model.depth=2", "run.log_every=2", "run.max_iters=4", "batch.global=4", "data.workers=1"]

failures = []


def check(holds, what):
    if not holds:
        failures.append(what)
        print(f"FAILED: {what}")


def label(number, y, x):
    return int((x + 3 * number) % SIDE < y)


def value(number, y, x, channel):
    return 300 + 100 * channel + 900 * label(number, y, x) * (channel != 1) + (7 * x + 5 * y + 11 * number) % 50


def tiff(path, number):
    """Little-endian, one strip, five interleaved samples of 16 bits."""
    pixels = b"".join(struct.pack("<5H", *(value(number, y, x, c) for c in range(CHANNELS))) for y in range(SIDE) for x in range(SIDE))
    tags = [(256, 3, 1, SIDE), (257, 3, 1, SIDE), (258, 3, CHANNELS, 8 + len(pixels)), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8),
            (277, 3, 1, CHANNELS), (278, 3, 1, SIDE), (279, 4, 1, len(pixels)), (284, 3, 1, 1)]
    bits = struct.pack("<5H", *[16] * CHANNELS)
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    path.write_bytes(b"II*\0" + struct.pack("<I", 8 + len(pixels) + len(bits)) + pixels + bits + directory)


def mask(path, number, of=label):
    """A gray PNG, value = class."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes(of(number, y, x) for x in range(SIDE)) for y in range(SIDE))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0))
                     + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def make_set(place):
    for split, numbers in (("train", range(8)), ("val", range(8, 11))):
        for kind in ("images", "masks"):
            (place / kind / split).mkdir(parents=True)
        for number in numbers:
            tiff(place / "images" / split / f"{number}.tif", number)
            mask(place / "masks" / split / f"{number}.png", number)
    config = place / "bands.toml"
    config.write_text(f'[data]\nlayout = "folder"\nroot = "{place}"\nnum_classes = 2\nchannels = {CHANNELS}\ndisplay = [4, 2, 0]\n'
                      '[data.augment]\nhflip = 0.5\nscale = [0.8, 1.2]\ncrop = [32, 32]\n')
    return config


def expected_mean(channel):
    values = [value(n, y, x, channel) for n in range(8) for y in range(SIDE) for x in range(SIDE)]
    return sum(values) / len(values)


def refusal(*arguments):
    done = subprocess.run([sys.argv[1], *map(str, arguments)], capture_output=True, text=True)
    return done.returncode, done.stderr


def check_the_data(config):
    train = json.loads(lockstep("data", "check", config, "--json"))["train"]
    check(train["types"] == {"uint16": 8} and train["channels"] == CHANNELS, f"data check: {train['types']}, {train['channels']}")
    check(abs(train["mean"][2] - expected_mean(2)) < 1e-6, f"data check: mean {train['mean']}")
    four = overrides(["data.channels=4", "data.display=[0]"])
    code, text = refusal("data", "check", config, *four)
    check(code == 3, f"four channels of five: exit code {code}")
    code, text = refusal("train", config, *four, "-o", config.parent / "none")
    check(code == 3 and "expected 4 channels (data.channels), but it has 5" in text and "data.bands = [0, 1, 2, 3]" in text, text)
    code, text = refusal("plan", config, "-s", "data.channels=4")
    check(code == 2 and "data.display" in text and "data.channels = 4" in text, text)


def check_a_run(config, place):
    run = place / "run"
    said = lockstep("train", config, "-d", "cpu:2", "-o", run, *overrides(TRAINING))
    check("8 images of uint16" in said, "the start does not say what was measured:\n" + said)
    data = tomllib.loads((run / "config.toml").read_text())["data"]
    check(data["normalize"] == "dataset" and data["pixels"] == "uint16" and len(data["mean"]) == CHANNELS, f"config.toml: {data}")
    check(abs(data["mean"][0] - expected_mean(0)) < 1e-2, f"config.toml: {data['mean']}")
    lockstep("eval", run)
    lockstep("eval", run, "--flip", "-s", "eval.window=[16, 16]")
    lockstep("predict", run, place / "images/val", "-o", place / "maps")
    check(len(list((place / "maps").glob("*_overlay.png"))) == 3, "predictions are missing")
    lockstep("data", "preview", config, "-n", 1, "-o", place / "preview")
    lockstep("export", "onnx", run, "-o", place / "net.onnx")
    check(b"lockstep.pixels" in (place / "net.onnx").read_bytes(), "the ONNX file does not say what its input is")
    # What was measured stays, whatever has become of the data.
    tiff(place / "images/train/99.tif", 99)
    mask(place / "masks/train/99.png", 99)
    lockstep("train", config, "-d", "cpu:2", "-o", run, "--resume", *overrides(TRAINING), "-s", "run.max_iters=6")
    resumed = tomllib.loads((run / "config.toml").read_text())["data"]
    check(resumed["mean"] == data["mean"], f"resuming measured again: {resumed['mean']}")
    for folder, suffix in (("images", "tif"), ("masks", "png")):
        (place / folder / "train" / f"99.{suffix}").unlink()


def check_channel_files(place):
    """An image of three files, as nnU-Net has them: every command takes it for one."""
    root = place / "parts"
    for split, numbers in (("train", range(4)), ("val", range(4, 6))):
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True)
        for number in numbers:
            mask(root / "masks" / split / f"{number}.png", number)
            for part in range(3):
                mask(root / "images" / split / f"{number}_000{part}.png", number,
                     lambda number, y, x, part=part: (9 * x + 5 * y * part + 99 * label(number, y, x)) % 256)
    config, run = place / "parts.toml", root / "run"
    config.write_text(f'[data]\nroot = "{root}"\nnum_classes = 2\nnormalize = "dataset"\nchannel_files = ["_0000", "_0001", "_0002"]\n')
    lockstep("train", config, "-d", "cpu:2", "-o", run, *overrides(TRAINING))
    check("images/train/0_0002.png" in (run / "data.tsv").read_text(), "the data set's list lacks an image's third file")
    lockstep("eval", run)
    lockstep("export", "onnx", run, "-o", root / "net.onnx")
    for number, options in enumerate(([], ["--window", "16,16"])):
        maps = root / f"maps{number}"
        lockstep("predict", run, root / "images/val", "-o", maps, *options)
        check(sorted(f.name for f in maps.iterdir()) == [f"{n}{end}.png" for n in (4, 5) for end in ("", "_overlay")], f"{[*maps.iterdir()]}")
    mask(root / "images/train/3_0001.png", 3)
    done = subprocess.run([sys.argv[1], "train", config, "-d", "cpu:2", "-o", run, "--resume", *overrides([*TRAINING, "run.max_iters=6"])],
                          capture_output=True, text=True)
    check(done.returncode == 0 and "1 file changed (images/train/3_0001.png)" in done.stdout + done.stderr, done.stdout + done.stderr)
    lockstep("compare", config, "--modes", "local", "--seeds", 1, "-d", "cpu:2", "-o", root / "both", *overrides(TRAINING))
    check((root / "both/report.html").exists(), "there is no report of the comparison")


def balanced_weights():
    """Median frequency: each class is in every image, so that its frequency is its share of all labels."""
    ones = sum(label(number, y, x) for number in range(8) for y in range(SIDE) for x in range(SIDE)) / (8 * SIDE * SIDE)
    return [0.5 / (1 - ones), 0.5 / ones]


def check_balanced(config, place):
    """What is measured is what a person would write, and stays."""
    def train(name, weights, *more):
        lockstep("train", config, "-d", "cpu:2", "-o", place / name, *overrides([*TRAINING, f"loss.class_weight={weights}"]), *more)
        written = tomllib.loads((place / name / "config.toml").read_text())["loss"]["class_weight"]
        return written, (place / name / "ckpt/last.safetensors").read_bytes()[-4096:]
    written, weights = train("balanced", "balanced")
    check(written[0] == "balanced" and all(abs(a - b) < 1e-6 for a, b in zip(written[1:], balanced_weights(), strict=True)), f"{written}")
    check(train("listed", written[1:])[1] == weights, "balanced weights train otherwise than the same in a list")
    check(train("even", [1, 1])[1] != weights, "balanced weights change nothing")
    mask(place / "masks/train/0.png", 0, lambda *_: 0)
    check(train("balanced", "balanced", "--resume", "-s", "run.max_iters=6")[0] == written, "resuming measured the weights again")
    mask(place / "masks/train/0.png", 0)
    lockstep("compare", config, "--modes", "local", "--seeds", 1, "-d", "cpu:2", "-o", place / "cell", *overrides([*TRAINING, "loss.class_weight=balanced"]))
    of_cell = tomllib.loads((place / "cell/local-s0/config.toml").read_text())["loss"]["class_weight"]
    check(of_cell == written, f"a comparison's run has {of_cell}")


def check_maps(place):
    """Maps of TIFF are TIFF of the image's size, the same in windows on any devices, and without them where one is the image."""
    images, run = place / "images/val", place / "run"
    def maps(name, *options):
        lockstep("predict", run, images, "-o", place / name, *options)
        files = sorted((place / name).iterdir())
        check([f.suffix for f in files] == [".tif", ".png"] * 3, f"maps: {files}")
        return [f.read_bytes() for f in files]
    one = maps("one", "-d", "cpu:1")
    check(all(file[:4] == b"II*\0" for file in one[::2]), "a map of a TIFF is no TIFF")
    check(maps("image", "--window", "32,32") == one, "a window of the whole image gives another map")
    for number, options in enumerate(([], ["--blend", "gaussian"], ["--flip"], ["-s", "data.normalize=image"])):
        asked = ["--window", "16,16", *options]
        check(maps(f"by1{number}", *asked, "-d", "cpu:1") == maps(f"by4{number}", *asked, "-d", "cpu:4"), f"four devices: {options}")
    code, text = refusal("predict", run, images, "-o", images)
    check(code == 2 and "is one of the images" in text, text)
    code, text = refusal("predict", run, images, "-o", place / "server", "--submission")
    check(code == 2, f"a submission of TIFF: exit code {code}")


def check_others(config, place):
    lockstep("compare", config, "--modes", "local,instance", "--seeds", 1, "-d", "cpu:2", "-o", place / "both", *overrides(TRAINING))
    check((place / "both/report.html").exists(), "there is no report of the comparison")
    lockstep("diagnose", config, *overrides(TRAINING))
    for number, keys in enumerate((["data.normalize=image"], ["data.normalize=percentile", "data.percentiles=[2, 98]"],
                                   ["data.bands=[3, 0, 2]", "data.channels=3", "data.display=[0]"])):
        run = place / f"other{number}"
        lockstep("train", config, "-d", "cpu:1", "-o", run, *overrides(TRAINING + keys))
        lockstep("predict", run, place / "images/val/9.tif", "-o", place / f"maps{number}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        config = make_set(place)
        check_the_data(config)
        check_a_run(config, place)
        check_channel_files(place)
        check_balanced(config, place)
        check_maps(place)
        check_others(config, place)
    if failures:
        sys.exit(f"{len(failures)} failures")
    print("images of any kind: passed")


if __name__ == "__main__":
    main()
