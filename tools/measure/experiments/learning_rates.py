#!/usr/bin/env python3
"""Looks for each norm's learning rate on a split of the training set, and trains with the best (docs/notes/experiments.md).

    tools/measure/experiments/learning_rates.py CONFIG ROOT OUT [--lr 0.02 0.05 0.1] [--modes local sync instance group] [-s key=value ...]

ROOT is a data set of layout "folder". About a fifth of the training images is set apart; each mode and rate is trained on the others with two
seeds and scored on these, `local` by running and by each image's own statistics. Prints the scores, the best rate last.
"""
import argparse
import json
import os
import pathlib
import subprocess

SEEDS = (0, 1)


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


def train(lockstep, arguments, data, mode, rate, seed):
    run = arguments.out / f"{mode}-lr{rate}-s{seed}"
    if not (run / "ckpt/last.safetensors").exists():
        # One device; with mode local slices of one image stand for devices.
        norm = ["-s", "bn.mode=ghost", "-s", f"bn.virtual_devices={arguments.batch}"] if mode == "local" else ["-s", f"bn.mode={mode}"]
        settings = [word for setting in arguments.set for word in ("-s", setting)]
        subprocess.run([lockstep, "train", arguments.config, "-d", "cpu:1", "-o", run, "--seed", str(seed), "-s", f"data.root={data}",
                        "-s", f"batch.global={arguments.batch}", "-s", f"optim.lr={rate}", *norm, *settings], check=True,
                       stdout=subprocess.DEVNULL, env={**os.environ, "LOCKSTEP_AUTOTUNE": ""})
    return score_by(run)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--lr", nargs="+", default=["0.02", "0.05", "0.1"])
    parser.add_argument("--modes", nargs="+", default=["local", "sync", "instance", "group"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("-s", dest="set", action="append", default=["bn.groups=4"])
    arguments = parser.parse_args()
    lockstep = os.environ.get("LOCKSTEP", "build/release/bin/lockstep")
    data = arguments.out / "data"
    link_split(arguments.root, data)
    for mode in arguments.modes:
        best = {}
        for rate in arguments.lr:
            scores = [train(lockstep, arguments, data, mode, rate, seed) for seed in SEEDS]
            for stats in ("device0", "own") if mode in ("local", "sync") else ("device0",):
                mean = sum(each[stats] for each in scores) / len(scores)
                best.setdefault(stats, []).append((mean, rate))
        for stats, found in best.items():
            row = ", ".join(f"{rate}: {mean:.2f}" for mean, rate in found)
            print(f"{mode}, {stats}: {row}; best {max(found)[1]}", flush=True)


if __name__ == "__main__":
    main()
