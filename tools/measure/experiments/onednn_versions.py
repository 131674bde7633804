#!/usr/bin/env python3
"""What a newer oneDNN would bring for the convolutions that Lockstep leaves to it (docs/notes/bench.md).

    tools/measure/experiments/onednn_versions.py --network resnet50 [--iters 4]

Both programs train the network on one thread and print what each call of oneDNN took (ONEDNN_VERBOSE): Lockstep with the
oneDNN that it is linked with, PyTorch of .venv with its own. A row is a geometry and a pass that Lockstep's choices leave to
oneDNN; the times are medians of the calls, for all images of a step.
"""
import argparse
import collections
import os
import pathlib
import re
import runpy
import statistics
import subprocess
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[3]
PASSES = {"forward": "forward", "forward_training": "forward", "forward_inference": "forward",
          "backward_data": "gradient of the input", "backward_weights": "gradient of the weights"}


def calls_of(command):
    """{(pass, geometry): ([ms per image of every call], {kernels})}, and oneDNN's version."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DNNL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
    calls = collections.defaultdict(lambda: ([], set()))
    version = "?"
    for line in done.stdout.splitlines():
        found = re.search(r"oneDNN v([\d.]+)", line)
        version = found.group(1) if found else version
        words = line.split(",")
        if "exec" not in words or "convolution" not in words:
            continue
        kind = next((PASSES[word] for word in words if word in PASSES), None)
        images = re.match(r"mb(\d+)_", words[-2])
        if kind is None or images is None:
            continue
        times, kernels = calls[kind, words[-2][images.end():]]
        times.append(float(words[-1]) / int(images.group(1)))
        kernels.add(words[words.index("convolution") + 1])
    return calls, version


def main():
    bench = types.SimpleNamespace(**runpy.run_path(str(ROOT / "tools/measure/bench_vs_torch")))
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=bench.NETWORKS, default="resnet50")
    parser.add_argument("--iters", type=int, default=4)
    parser.add_argument("--lockstep", default=str(ROOT / "build/release/bin/lockstep"))
    args = parser.parse_args()
    args.threads = 1
    network = bench.NETWORKS[args.network]
    settings = [f"batch.global={network.batch}", f"data.augment.crop={list(network.size)}", *network.settings]
    step = [args.lockstep, "bench", "step", bench.CONFIG, "-d", "cpu:1", *(word for setting in settings for word in ("-s", setting))]
    calls_of([*step, "--iters", 1])  # choices are made, so that no trial is among the calls
    ours, our_version = calls_of([*step, "--iters", args.iters])
    theirs, their_version = calls_of(bench.torch_command(args, ROOT / ".venv/bin/python", network, "channels_last",
                                                         network.batch, network.size))
    print(f"{args.network}, {bench.machine()['processor']}, one thread, {network.batch} images of {network.size[0]}x{network.size[1]}\n")
    print(f"| convolution | pass | oneDNN {our_version}, ms | its kernel | oneDNN {their_version}, ms | its kernel | older / newer |")
    print("|:--|:--|--:|:--|--:|:--|--:|")
    sums = [0.0, 0.0]
    for key in sorted(ours):
        if key not in theirs or len(ours[key][0]) < args.iters:  # else a trial's
            continue
        old, new = (network.batch * statistics.median(calls[key][0]) for calls in (ours, theirs))
        sums = [sums[0] + old, sums[1] + new]
        print(f"| {key[1]} | {key[0]} | {old:.1f} | {', '.join(sorted(ours[key][1]))} | {new:.1f} "
              f"| {', '.join(sorted(theirs[key][1]))} | {old / new:.2f} |")
    print(f"| once each | | {sums[0]:.1f} | | {sums[1]:.1f} | | {sums[0] / sums[1] if sums[1] else 0:.2f} |")
    missing = sum(key not in theirs for key in ours)
    print(f"\n{missing} more are no convolutions of oneDNN in PyTorch, which takes other matrix products for them")


main()
