"""The program's U-Net in PyTorch, with the names of its safetensors files."""
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x):
        return functional.relu(self.bn(self.conv(x)))


class UNet(nn.Module):
    def __init__(self, width, depth, classes):
        super().__init__()
        widths = [width << stage for stage in range(depth)]
        self.encoder = nn.ModuleList(nn.Sequential(Block(i, o), Block(o, o)) for i, o in zip([3, *widths], widths))
        self.decoder = nn.ModuleList(nn.Sequential(Block(3 * o, o), Block(o, o)) for o in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = []
        for number, stage in enumerate(self.encoder):
            x = stage(functional.max_pool2d(x, 2) if number else x)
            skips.append(x)
        for stage, skip in zip(self.decoder, reversed(skips[:-1])):
            up = functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = stage(torch.cat([skip, up], 1))
        return self.head(x)
