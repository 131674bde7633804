#!/usr/bin/env python3
"""Which share of the gain of synchronized BatchNorm comes with which share of the exchanges (docs/notes/experiments.md).

    lockstep compare CONFIG --modes local,sync:top:1,sync:top:3,sync --images-per-device 1 ... -o FOLDER
    tools/measure/experiments/share_of_gain.py FOLDER

A layer's forward and backward exchange have as many bytes as it has channels, times a constant. The interval of a share is
Fieller's (1954), of a ratio of two means that were measured on the same seeds; "any" where the gain itself is not shown.
"""
import argparse
import json
import math
import pathlib
import sys
from statistics import covariance, fmean

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python"))

import lockstep  # noqa: E402


def channels_of(run):
    """Of every BatchNorm layer, from the run's last weights."""
    return {name.removesuffix(".running_mean"): len(values)
            for name, values in lockstep.read_run(run).state_dict().items() if name.endswith(".running_mean")}


def fieller(parts, gains, quantile):
    """The ratios r for which mean(parts - r * gains) lies within `quantile` of its standard errors from 0."""
    scale = quantile ** 2 / len(gains)
    a = fmean(gains) ** 2 - scale * covariance(gains, gains)
    b = fmean(parts) * fmean(gains) - scale * covariance(parts, gains)
    c = fmean(parts) ** 2 - scale * covariance(parts, parts)
    if a <= 0:
        return None
    root = math.sqrt(max(b * b - a * c, 0))
    return (b - root) / a, (b + root) / a


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    comparison = json.loads((folder / "comparison.json").read_text())
    channels = channels_of(next(folder.glob("sync-s*")))
    modes = {mode["mode"]: mode for mode in comparison["modes"]}
    pairs = {(pair["a"], pair["b"]): pair for pair in comparison["pairs"]}
    (local,) = [name for name in modes if name.startswith("local")]
    whole = pairs["sync", local]
    half = (whole["interval"][1] - whole["interval"][0]) / 2
    quantile = half / (whole["sd"] / math.sqrt(len(whole["seeds"])))
    print(f"local: {modes[local]['mIoU']['mean']:.2f} ± {modes[local]['mIoU']['sd']:.2f}\n")
    print("| layers | exchanges | bytes | mIoU | - local, 95 % interval | share of the gain | sync -, 95 % interval |")
    print("|--:|--:|--:|--:|:--|:--|:--|")
    for name, mode in modes.items():
        if not name.startswith("sync"):
            continue
        layers = mode["sync_layers"] or list(channels)
        pair, rest = pairs[name, local], pairs.get(("sync", name))
        share = fieller(pair["differences"], whole["differences"], quantile)
        told = lambda p: f"{p['mean']:+.2f} [{p['interval'][0]:+.2f}, {p['interval'][1]:+.2f}], p = {p['p_value']:.2f}"
        print(f"| {len(layers)} | {len(layers) / len(channels):.0%} "
              f"| {sum(channels[layer] for layer in layers) / sum(channels.values()):.0%} "
              f"| {mode['mIoU']['mean']:.2f} ± {mode['mIoU']['sd']:.2f} | {told(pair)} "
              f"| {pair['mean'] / whole['mean']:.0%} "
              + (f"[{share[0]:.0%}, {share[1]:.0%}] " if share else "any ") * (name != "sync")
              + f"| {told(rest) if rest else ''} |")


if __name__ == "__main__":
    main()
