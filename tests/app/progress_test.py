#!/usr/bin/env python3
"""Progress on a terminal: shown while work goes on, gone when lines are printed and at the end; nothing of it in a pipe.

    progress_test.py LOCKSTEP
"""
import os
import pathlib
import pty
import subprocess
import sys
import tempfile

from small_run import CONFIG, SMALL, overrides

KEYS = overrides([*SMALL, "data.train_images=8", "data.val_images=3", "run.max_iters=4"])
PRECISE = overrides(["bn.eval_stats=precise", "bn.precise_iters=2"])
ERASE = "\r\x1b[K"


def run(arguments, terminal):
    """stdout, and what a terminal (or a pipe) in place of stderr is given."""
    command = [sys.argv[1], *map(str, arguments)]
    if not terminal:
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    out = process.stdout.read()
    os.close(ours)
    return process.wait(), out, shown.decode()


def check(arguments, works):
    code, out, shown = run(arguments, terminal=True)
    if code != 0:
        sys.exit(f"{arguments}: exit code {code}\n{out}{shown}")
    for work in works:
        if ERASE + work not in shown:
            sys.exit(f"{arguments}: `{work}` is not shown in {shown!r}")
    if not shown.endswith(ERASE) or "\n" in shown:
        sys.exit(f"{arguments}: the line is left behind: {shown!r}")


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    train = ["train", CONFIG, "-d", "cpu:2", *KEYS]
    check([*train, "-o", folder / "a"], ["training: 1/4 steps, loss ", "evaluating: 0/3 images"])
    check(["eval", folder / "a"], ["evaluating: 0/3 images"])
    check(["eval", folder / "a", "--flip"], ["evaluating: 0/3 images"])
    check(["eval", folder / "a", *PRECISE], ["precise statistics: 0/2 batches", "evaluating: 0/3 images"])
    check(["data", "check", CONFIG, *KEYS], ["looking at train: 0/8 images", "looking at val: 0/3 images"])
    compare = ["compare", CONFIG, "-d", "cpu:2", "--seeds", "1", *KEYS]
    code, out, err = run([*compare, "-o", folder / "c"], terminal=False)
    if code != 0 or err or "\x1b" in out or not any(" in 0:00:" in line and " to the end" in line for line in out.splitlines()):
        sys.exit(f"compare: {out!r} {err!r}")
    code, out, err = run([*train, "-o", folder / "b"], terminal=False)
    if code != 0 or err or "steps," in out:
        sys.exit(f"in a pipe: {out!r} {err!r}")
    print("progress is shown on a terminal alone")
