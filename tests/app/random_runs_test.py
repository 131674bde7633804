"""Draws configurations, trains each for a few steps, and demands what every configuration is promised: a working run or a clear
refusal, which `data check` gives, too; the same bytes again, with other threads and, where placement does not matter, on other
devices; a run that fails and is resumed is the run that did not; `eval` says what the last validation said.

    random_runs_test.py PROGRAM [FIRST LAST]    seeds of the draws; the first of them are the test's
"""
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from small_run import CONFIG, overrides

FIRST, LAST = map(int, sys.argv[2:4]) if len(sys.argv) > 2 else (0, 24)
# [key] values, one of which is drawn; None: the key is left out
KEYS = {
    "run.max_iters": (2, 3, 4), "run.val_every": (None, 1, 2), "run.checkpoint_every": (1, 2), "run.log_every": (1, 2, 50),
    "run.log_bn": (None, "off", "full"), "run.precision": (None, None, "bf16"), "run.eval_all_stats": (None, "true"),
    "run.eval_disparity": (None, None, "true"), "run.tensorboard": (None, None, "true"),
    "data.size": ("[16,24]", "[24,17]", "[32,32]"), "data.train_images": (3, 5, 8), "data.val_images": (1, 3),
    "data.ignore_index": (None, None, 3), "data.shuffle": (None, "false"), "data.workers": (0, 2), "data.cache_mb": (0, 1),
    "data.exposure": (None, "[0.5,20]"), "data.val_crop": (None, None, "[16,16]"),
    "data.augment.crop": ("[16,16]", "[17,24]"), "data.augment.scale": (None, "[0.5,2]"), "data.augment.vflip": (None, 0.5),
    "data.augment.photometric": (None, "true"), "data.augment.noise": (None, 0.1), "data.augment.class_crops": (None, 0.5),
    "batch.global": (2, 3, 4, 6), "batch.drop_last": ("false", "false", None), "batch.accumulate": (None, 2),
    "bn.accumulated": ("exact", "exact", None), "memory.recompute": (None, "true"),
    "bn.mode": ("sync", "sync", "local", "ghost", "renorm", "instance", "layer", "group", "frozen"), "bn.groups": (1, 2),
    "bn.virtual_devices": (2, 3), "bn.sync_layers": (None, None, '["*0*"]'), "bn.sync_group": (None, None, 2),
    "bn.renorm_slices": (None, 2), "bn.renorm_warmup": (None, 0.5), "bn.eps_mode": (None, "clamp"), "bn.affine": (None, None, "false"),
    "bn.momentum": (None, 0.3, "cumulative"), "bn.track_running_stats": (None, None, None, "false"), "bn.precise_iters": (2,),
    "bn.eval_stats": (None, "mean", "pooled", "precise", "batch", "own"), "bn.freeze_at": (None, None, 0.4),
    "eval.window": (None, None, "[16,16]"), "eval.blend": (None, "gaussian"),
    "loss.type": ("cross_entropy", "dice", "focal", "ohem_cross_entropy"), "loss.weight": (None, 0.5),
    "optim.type": ("sgd", "adamw", "lion", "adam", "rmsprop"), "optim.clip_norm": (None, 0.5), "optim.clip_value": (None, 0.1),
    "optim.lr": (0.01,), "schedule.type": ("poly", "cosine", "step", "constant"), "schedule.warmup_iters": (None, 1),
    "ema.decay": (None, 0.5), "ema.bn": (None, "average", "precise"),
}
NETWORKS = (["model.width=3", "model.depth=1"], ["model.width=4", "model.depth=2"],
            ["model.arch=fcn_resnet50", "model.resnet_width=2", "model.aux_head=true"])
UNCLEAR = re.compile(r"\.(cpp|h):\d+|std::|bad_alloc|map::at|Sanitizer|runtime error")
failures = []


def check(holds, seed, what):
    if not holds:
        failures.append(what)
        print(f"FAILED: seed {seed}: {what}")


def lockstep(*arguments, threads=1, fault=""):
    environment = {**os.environ, "LOCKSTEP_AUTOTUNE": "", "OMP_NUM_THREADS": str(threads), "LOCKSTEP_FAULT": fault}
    return subprocess.run([sys.argv[1], *map(str, arguments)], capture_output=True, text=True, env=environment, timeout=120, check=False)


def evaluations(run):
    """Of a run, by step and statistics; a resumed one repeats some."""
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return {(line["type"], line["step"], line["eval_stats"]): {**line, "seconds": 0} for line in lines if line["type"] in ("eval", "eval_ema")}


def files(run, with_devices):
    """What has to be the same; the state also says on which devices."""
    names = ["last", "last_ema", *(["last.state"] if with_devices else [])]
    contents = {name: (run / "ckpt" / f"{name}.safetensors") for name in names}
    return {**{name: path.read_bytes() for name, path in contents.items() if path.exists()},
            "scalars": (run / "scalars.json").read_text(), "evaluations": evaluations(run)}


def any_placement(keys):
    by_image = keys["bn.mode"] in ("instance", "layer", "group", "frozen")
    synchronized = keys["bn.mode"] == "sync" and "bn.sync_layers" not in keys and "bn.sync_group" not in keys
    return (by_image or synchronized) and ("batch.accumulate" not in keys or "bn.accumulated" in keys)


def draw(seed, folder):
    rng = random.Random(seed)
    drawn = {key: rng.choice(values) for key, values in KEYS.items()}
    keys = {key: value for key, value in drawn.items() if value is not None}
    devices, other = rng.sample((1, 2, 3, 4), 2)
    network = rng.choice(NETWORKS)
    settings = overrides([f"{key}={value}" for key, value in keys.items()] + ["model.depth=1", *network, "run.stall_timeout=60"])

    def train(name, count, *more, **options):
        return lockstep("train", CONFIG, "-d", f"cpu:{count}", "-o", folder / name, *settings, *more, **options)

    done = train("run", devices)
    check(not UNCLEAR.search(done.stderr) and done.returncode in (0, 2, 4, 5), seed, f"exit code {done.returncode}: {done.stderr}")
    if done.returncode != 0:
        refused = lockstep("data", "check", CONFIG, "-d", f"cpu:{devices}", *settings).returncode
        check(done.returncode == 4 or refused == done.returncode, seed, f"data check ends with {refused}: {done.stderr}")
        return False
    expected = files(folder / "run", True)
    train("again", devices, threads=3)
    check(files(folder / "again", True) == expected, seed, "another run or other threads change the result")
    train("resumed", devices, fault=rng.choice((f"throw:rank={devices - 1},step=1", f"evaluation:step={keys['run.max_iters']}")))
    train("resumed", devices, "--resume")
    check(files(folder / "resumed", True) == expected, seed, "a run that failed and was resumed is another one")
    if any_placement(keys):
        moved = train("moved", other)
        expected = files(folder / "run", False)
        check(moved.returncode == 0 and files(folder / "moved", False) == expected, seed, f"cpu:{other} is not cpu:{devices}: {moved.stderr}")
    evaluated = lockstep("eval", folder / "run", "-d", f"cpu:{other}", "--json")
    check(evaluated.returncode == 0, seed, f"eval: {evaluated.stderr}")
    if evaluated.returncode == 0:
        said = json.loads(evaluated.stdout)
        known = expected["evaluations"]["eval", said["iteration"], said["eval_stats"]]
        check(all(said[key] == known[key] for key in ("confusion", "loss")), seed, "eval is not the last validation")
    return True


def main():
    trained = 0
    for seed in range(FIRST, LAST):
        with tempfile.TemporaryDirectory() as folder:
            trained += draw(seed, pathlib.Path(folder))
    print(f"{LAST - FIRST} configurations, {trained} of them trained, {len(failures)} failures")
    return 1 if failures or 2 * trained < LAST - FIRST else 0


if __name__ == "__main__":
    sys.exit(main())
