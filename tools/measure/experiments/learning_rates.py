#!/usr/bin/env python3
"""Looks for each norm's learning rate on images apart, and trains all six seeds with the best (docs/notes/experiments.md).

    tools/measure/experiments/learning_rates.py CONFIG ROOT OUT [--lr 0.02 0.05 0.1] [--modes local sync instance group] [-s key=value ...]

ROOT is a data set of layout "folder". About a fifth of its training images is set apart; each mode and rate is trained on the others with two
seeds and scored on these. ROOT "generated" stands for a generated set, whose seed draws its images: seeds 100 and 101 choose there. `local`
counts by its best statistics. Prints the scores by rate, then those of the best rates on the validation split, seeds 0 to 5, and each mode's
difference from `sync`. The same call goes on where it was stopped.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess

FINAL_SEEDS = range(6)
T_QUANTILE = 2.5706  # of Student's t, 97.5 %, five degrees of freedom
KINDS = {"local": ("device0", "own"), "sync": ("device0",), "instance": ("device0",), "group": ("device0",)}


def link_split(root, out):
    for image in sorted((root / "images/train").iterdir()):
        names = sorted((root / "masks/train").glob(image.stem + ".*"))
        split = "val" if sum(image.stem.encode()) % 5 == 0 else "train"
        for what, source in (("images", image), ("masks", names[0])):
            link = out / what / split / source.name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.exists():
                link.symlink_to(source.resolve())


def score_by(run):
    """{eval_stats: score} of a finished run."""
    for line in open(run / "events.jsonl", encoding="utf-8"):
        event = json.loads(line)
        if event["type"] == "end":
            summary = event["summary"]
    return {each["eval_stats"]: each["mIoU"] for each in [summary["evaluation"], *summary["other_stats"]]}


def train(arguments, run, data, mode, rate, seed):
    if not (run / "ckpt/last.safetensors").exists():
        # One device; with mode local slices of one image stand for devices.
        norm = ["bn.mode=ghost", f"bn.virtual_devices={arguments.batch}"] if mode == "local" else [f"bn.mode={mode}"]
        settings = [*data, f"batch.global={arguments.batch}", f"optim.lr={rate}", *norm, *arguments.set]
        subprocess.run([os.environ.get("LOCKSTEP", "build/release/bin/lockstep"), "train", arguments.config, "-d", "cpu:1", "-o", run,
                        "--seed", str(seed), *(word for setting in settings for word in ("-s", setting))],
                       check=True, stdout=subprocess.DEVNULL, env={**os.environ, "LOCKSTEP_AUTOTUNE": ""})
    return score_by(run)


def choose(arguments, data, seeds):
    """{(mode, statistics): its best rate}"""
    best = {}
    for mode in arguments.modes:
        scores = {rate: [train(arguments, arguments.out / f"{mode}-lr{rate}-s{seed}", data, mode, rate, seed) for seed in seeds]
                  for rate in arguments.lr}
        for stats in KINDS[mode]:
            means = {rate: statistics.mean(each[stats] for each in found) for rate, found in scores.items()}
            best[mode, stats] = max(means, key=means.get)
            row = ", ".join(f"{rate}: {mean:.2f}" for rate, mean in means.items())
            print(f"{mode}, {stats}: {row}; best {best[mode, stats]}", flush=True)
    return best


def interval(differences):
    half = T_QUANTILE * statistics.stdev(differences) / math.sqrt(len(differences))
    return f"{statistics.mean(differences):+.2f} [{statistics.mean(differences) - half:+.2f}, {statistics.mean(differences) + half:+.2f}]"


def report(arguments, data, best):
    final = {(mode, stats): [train(arguments, arguments.out / f"final-{mode}-lr{rate}-s{seed}", data, mode, rate, seed)[stats]
                             for seed in FINAL_SEEDS]
             for (mode, stats), rate in best.items()}
    for (mode, stats), scores in final.items():
        difference = "" if mode == "sync" or ("sync", "device0") not in final else "; minus sync " + interval(
            [a - b for a, b in zip(scores, final["sync", "device0"])])
        print(f"{mode}, {stats}, rate {best[mode, stats]}: {statistics.mean(scores):.2f} ± {statistics.stdev(scores):.2f}{difference}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--lr", nargs="+", default=["0.02", "0.05", "0.1"])
    parser.add_argument("--modes", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("-s", dest="set", action="append", default=["bn.groups=4"])
    arguments = parser.parse_args()
    if str(arguments.root) == "generated":
        best, whole = choose(arguments, [], (100, 101)), []
    else:
        link_split(arguments.root, arguments.out / "data")
        best, whole = choose(arguments, [f"data.root={arguments.out / 'data'}"], (0, 1)), [f"data.root={arguments.root}"]
    report(arguments, whole, best)


if __name__ == "__main__":
    main()
