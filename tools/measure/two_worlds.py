#!/usr/bin/env python3
"""One training in both worlds: the quick start's U-Net by `lockstep compare`, and in PyTorch by lockstep.torch.compare.

    LOCKSTEP_PROGRAM=build/release/bin/lockstep python3 tools/measure/two_worlds.py [SEEDS=2] [FOLDER=build/two_worlds]

The images are the quick start's, written once and read by both. Prints the rows' means, and each difference in both. It needs Pillow.
"""
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(Path(__file__).parent)]

import lockstep.torch  # noqa: E402
from torch_unet import UNet, make_sgd  # noqa: E402

SEEDS = int(sys.argv[1]) if sys.argv[1:] else 2
FOLDER = Path(sys.argv[2] if sys.argv[2:] else ROOT / "build/two_worlds")
TRAIN, VAL, SIZE, EPOCHS, BATCH, LR = 240, 40, [64, 96], 5, 4, 0.05
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
MODES = ["local", "sync", "instance"]


def write_images():
    config = ROOT / "data/configs/quickstart.toml"
    subprocess.run([os.environ["LOCKSTEP_PROGRAM"], "data", "preview", config, "-n", str(TRAIN + VAL), "-s", f"data.train_images={TRAIN + VAL}",
                    "-s", f"data.size={SIZE}", "-s", "data.shuffle=false", "-s", "data.augment.hflip=0", "-o", FOLDER / "all"], check=True,
                   stdout=subprocess.DEVNULL)
    for number in range(TRAIN + VAL):
        split = "train" if number < TRAIN else "val"
        for kind, name in (("images", "image"), ("masks", "labels")):
            (FOLDER / kind / split).mkdir(parents=True, exist_ok=True)
            (FOLDER / f"all/{number:03}_{name}.png").rename(FOLDER / kind / split / f"{number:03}.png")


def tensors(split):
    paths = sorted((FOLDER / "images" / split).iterdir())
    images = torch.stack([torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) for path in paths]).float() / 255
    labels = [torch.from_numpy(np.array(Image.open(FOLDER / "masks" / split / path.name)).astype(np.int64)) for path in paths]
    return (images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1), torch.stack(labels)


def train(trial):
    torch.manual_seed(trial.seed)
    net = trial.convert(UNet(8, 3, 11))
    optimizer = make_sgd(net, LR, 0.9, 1e-4, 0.0)
    steps = EPOCHS * TRAIN // BATCH
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 - step / steps) ** 0.9)
    chance = random.Random(trial.seed)
    for _ in range(EPOCHS):
        order = chance.sample(range(TRAIN), TRAIN)
        for first in range(0, TRAIN, BATCH):
            part = order[first:first + BATCH]
            flip = [chance.random() < 0.5 for _ in part]
            images, labels = (torch.stack([each.flip(-1) if turned else each for each, turned in zip(of[part], flip)]) for of in DATA)
            loss = torch.nn.functional.cross_entropy(net(images), labels, ignore_index=255)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            trial.log(loss.item())
    trial.score(lambda model: lockstep.torch.evaluate(model, list(zip(*(of.split(BATCH) for of in tensors("val")))), classes=11))


if not (FOLDER / "masks").exists():
    write_images()
DATA = tensors("train")
here = lockstep.torch.compare(train, output=FOLDER / "torch", modes=MODES, seeds=SEEDS, global_batch=BATCH, images_per_device=1, classes=11)
config = {"run": {"epochs": EPOCHS}, "data": {"layout": "folder", "root": str(FOLDER), "num_classes": 11, "mean": MEAN, "std": STD,
                                              "augment": {"hflip": 0.5}},
          "batch": {"global": BATCH}, "model": {"width": 8, "depth": 3}, "optim": {"lr": LR}}
program = lockstep.compare(config, output=FOLDER / "program", modes=MODES, seeds=SEEDS, devices=f"cpu:{BATCH}", images=False)
print("| row | PyTorch | Lockstep |\n|:--|--:|--:|")
for name in sorted(here.rows, key=lambda name: here.rows[name].score.mean):
    print(f"| {name} | {here.rows[name].score.mean:.2f} | {program.rows[name].score.mean:.2f} |")
print("\n| difference | PyTorch | Lockstep |\n|:--|--:|--:|")
for each in here.differences:
    there = program.rows[each.a].score.mean - program.rows[each.b].score.mean
    print(f"| {each.a} - {each.b} | {each.difference:+.2f} | {there:+.2f} |")
