#!/usr/bin/env python3
"""TensorBoard's own reader gives back every number of scalars.json, from a training that was resumed and from an export.

    tensorboard_test.py LOCKSTEP

Says SKIPPED without the package tensorboard (python3 -m venv .board && .board/bin/pip install tensorboard).
"""
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as error:
    print(f"SKIPPED: {sys.executable} has no TensorBoard ({error})")
    sys.exit(0)

CONFIG = pathlib.Path(__file__).resolve().parents[2] / "data/configs/quickstart.toml"
SMALL = ["data.size=[32,32]", "data.train_images=8", "data.val_images=2", "model.width=4", "model.depth=2", "run.max_iters=10",
         "run.log_every=2", "run.checkpoint_every=6", "run.tensorboard=true"]


def lockstep(*arguments):
    done = subprocess.run([sys.argv[1], *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def wanted(run):
    points = {}
    for line in (run / "scalars.json").read_text().splitlines():
        numbers = json.loads(line)
        for name, value in numbers.items():
            if name not in ("step", "iter") and not isinstance(value, (str, type(None))):
                points.setdefault(f"{numbers['mode']}/{name}", []).append((numbers["step"], value))
    return points


def check(folder, run):
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    points = wanted(run)
    if set(reader.Tags()["scalars"]) != set(points):
        sys.exit(f"{folder}: curves {reader.Tags()['scalars']}, expected {sorted(points)}")
    for tag, expected in points.items():
        read = [(event.step, event.value) for event in reader.Scalars(tag)]
        steps = [step for step, _ in read] == [step for step, _ in expected]
        if not steps or any(abs(a[1] - b[1]) > 1e-6 * max(1, abs(b[1])) for a, b in zip(read, expected)):
            sys.exit(f"{folder}: {tag} is {read}, expected {expected}")
    print(f"{folder.name}: {sum(map(len, points.values()))} numbers of {len(points)} curves are equal")


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    run = folder / "run"
    lockstep("train", CONFIG, "-d", "cpu:2", "-o", run, *(word for key in SMALL for word in ("-s", key)))
    for path in (run / "ckpt").iterdir():
        if not path.name.startswith("iter_6"):
            path.unlink()
    lockstep("train", run / "config.toml", "-d", "cpu:2", "-o", run, "--resume")
    check(run / "tensorboard", run)
    lockstep("logs", "export", run, "--tensorboard", folder / "board")
    check(folder / "board" / "run", run)
