"""Trains a U-Net in a loop of one's own: four classes of squares, on four virtual devices with synchronized BatchNorm.

    PYTHONPATH=build/release/python:python python3 python/examples/own_loop.py
"""
from typing import Any, Tuple

import numpy as np
from numpy.typing import NDArray

from lockstep.native import DataParallel, Predictor


def squares(random: np.random.Generator, images: int = 8, size: int = 32) -> Tuple[NDArray[Any], NDArray[Any]]:
    """Images [N, 3, H, W] of a square each, whose class is its colour; the class of every pixel."""
    pixels = random.normal(0, 0.5, (images, 3, size, size)).astype(np.float32)
    labels = np.zeros((images, size, size), dtype=np.uint16)
    for image, label in zip(range(images), random.integers(1, 4, images)):
        y, x = random.integers(0, size // 2, 2)
        area = (image, slice(y, y + size // 2), slice(x, x + size // 2))
        pixels[image, label - 1][area[1:]] += 1
        labels[area] = label
    return pixels, labels


random = np.random.default_rng(0)
model = {"width": 8, "depth": 3}
net = DataParallel("cpu:4", "unet", (8, 3, 32, 32), num_classes=4, model=model, bn="sync",
                   losses=["cross_entropy", {"type": "dice", "weight": 0.5}], optimizer={"type": "sgd", "lr": 0.1})
for step in range(60):
    result = net.train_step(*squares(random), lr=0.1 * (1 - step / 60) ** 0.9)
    if step % 10 == 9:
        print(f"step {step + 1}: loss {result.loss:.3f}, gradient {result.grad_norm:.2f}")

images, labels = squares(random)
classes, logits = Predictor("unet", net.state_dict(), num_classes=4, model=model).predict(images)
print(f"{(classes == labels).mean():.0%} of the pixels of new images are right")
