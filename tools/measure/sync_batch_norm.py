#!/usr/bin/env python3
"""What SyncBatchNorm of lockstep.torch costs beside torch.nn.BatchNorm2d, in turns: sync_batch_norm.py [ROUNDS].

A training step of torchvision's resnet18 and one layer of 144 MiB: medians of the ratios, each with one rank, which exchanges
nothing. And the most memory that one forward and backward pass of the layer takes beyond BatchNorm's, in processes of their own.
"""
import copy
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
from lockstep.torch import Group, convert  # noqa: E402

SHAPE = (36, 64, 128, 128)  # 144 MiB of float32


def step(net, x):
    begin = time.perf_counter()
    net(x).square().mean().backward()
    return time.perf_counter() - begin


def ratio(make, x, rounds):
    """The median of SyncBatchNorm's time over BatchNorm's, step by step."""
    plain = make()
    other = convert(copy.deepcopy(plain), Group())
    step(plain, x), step(other, x)
    return statistics.median(step(other, x) / step(plain, x) for _ in range(rounds))


def peak(kind):
    """Megabytes of this process after a pass, over those before."""
    layer = nn.BatchNorm2d(SHAPE[1]) if kind == "plain" else convert(nn.BatchNorm2d(SHAPE[1]), Group())
    x = torch.randn(SHAPE, requires_grad=True)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    layer(x).backward(torch.ones(1).expand(SHAPE))
    return (resident("VmHWM") - before) / 1024


def resident(key):
    """A line of /proc/self/status, in kB."""
    return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key)).split()[1])


def main():
    if sys.argv[1:2] == ["--peak"]:
        print(peak(sys.argv[2]))
        return
    rounds = int(sys.argv[1]) if sys.argv[1:] else 9
    torch.manual_seed(0)
    print(f"one layer of 144 MiB: {ratio(lambda: nn.BatchNorm2d(SHAPE[1]), torch.randn(SHAPE, requires_grad=True), rounds):.2f}")
    try:
        from torchvision.models import resnet18
        print(f"resnet18, 8 images of 224x224: {ratio(lambda: resnet18(num_classes=5), torch.randn(8, 3, 224, 224), rounds):.2f}")
    except ImportError:
        print("torchvision is not installed: no resnet18")
    said = [float(subprocess.run([sys.executable, __file__, "--peak", kind], capture_output=True, text=True, check=True).stdout)
            for kind in ("plain", "sync")]
    print(f"memory of one pass: {said[0]:.0f} MB, with SyncBatchNorm {said[1]:.0f} MB")


main()
