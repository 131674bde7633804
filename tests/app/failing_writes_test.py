#!/usr/bin/env python3
"""Every call that writes, failed once by a full disk and by a broken one: the command says so, and what was there stays whole.

    failing_writes_test.py LOCKSTEP FAILING_CALLS [--all]    the program, and failing_calls.cpp as a library

--all: every call of a training, and not the first and the last of each kind on each file.
"""
import errno
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from small_run import SMALL, overrides

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = ROOT / "data/configs/quickstart.toml"
KEYS = overrides([*SMALL, "data.train_images=8", "data.val_images=2", "run.max_iters=4", "run.checkpoint_every=2", "run.rank_logs=true"])
ERRORS = {"full": errno.ENOSPC, "broken": errno.EIO}
# Where files are opened to be written: one place. Locks are no output.
OPENERS = {"src/io/written_file.cpp"}
LOCKS = {"src/run/run_lock.cpp", "src/backend/conv/autotuner.cpp"}
OPENS = re.compile(r"std::ofstream|std::fstream|\bfopen\(|png_image_write_to_file|O_CREAT|copy_file|std::rename|[^:]\brename\(")

PROGRAM, LIBRARY = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])

failures = []


def check(holds, what):
    if not holds:
        failures.append(what)
        print(f"FAILED: {what}")


def run(folder, arguments, **environment):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, cwd=folder,
                          env={**os.environ, "LOCKSTEP_AUTOTUNE": "", "GOMP_SPINCOUNT": "1000", **environment})


def calls_of(folder, log, arguments):
    done = run(folder, arguments, LD_PRELOAD=LIBRARY, FAIL_BELOW=str(folder), FAIL_LOG=str(log))
    check(done.returncode == 0, f"{arguments}: {done.stderr}")
    calls = log.read_text().splitlines()
    log.unlink()
    return calls


def chosen(calls, every):
    """Numbers from 1 of the first and the last of each kind."""
    kinds = {}
    for number, call in enumerate(calls, 1):
        kinds.setdefault(re.sub(r"\.\d+-\d+\.tmp|tfevents\.\d+.*", "", call), []).append(number)
    return range(1, len(calls) + 1) if every else sorted({number for each in kinds.values() for number in (each[0], each[-1])})


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def try_command(name, make, arguments, keeps, every):
    """`keeps`: files that are there before, which may only be the old or the new ones."""
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place).resolve()
        folder, log = place / "work", place / "log"

        def fresh():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)

        fresh()
        before = contents(folder)
        calls = calls_of(folder, log, arguments)
        after = contents(folder)
        numbers = chosen(calls, every)
        for number in numbers:
            for word, code in ERRORS.items():
                fresh()
                done = run(folder, arguments, LD_PRELOAD=LIBRARY, FAIL_BELOW=str(folder), FAIL_CALL=str(number),
                           FAIL_ERROR=str(code))
                where = f"{name}: call {number}, {calls[number - 1].replace(str(folder), '')}, {word}: exit code {done.returncode}"
                now = contents(folder)
                told = os.strerror(code) in done.stderr + done.stdout
                check(done.returncode in (0, 1), f"{where}\n{done.stderr}")
                check(told or done.returncode == 0, f"{where}, and not why\n{done.stderr}")
                check(not [file for file in now if file.endswith(".tmp")], f"{where}: {sorted(now)}")
                for file in keeps:
                    whole = now.get(file) in (before[file], after[file])
                    check(whole, f"{where}: {file} is neither the old nor the new one")
                    check(done.returncode != 0 or now.get(file) == after[file], f"{where}: {file} is not written")
        print(f"{name}: {len(calls)} calls, {len(numbers)} of them failed, each by {len(ERRORS)} errors")


def openers():
    found = {}
    for source in [*(ROOT / "src").rglob("*.cpp"), *(ROOT / "src").rglob("*.h"), *(ROOT / "mpi").rglob("*.cpp")]:
        text = re.sub(r"//.*", "", source.read_text(encoding="utf-8"))
        if OPENS.search(text):
            found[str(source.relative_to(ROOT))] = OPENS.findall(text)
    check(set(found) == OPENERS | LOCKS, f"files are opened to be written outside of {OPENERS}: {found}")


def main():
    every = "--all" in sys.argv
    openers()
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        done = run(place, ["train", CONFIG, "-d", "cpu:1", "-o", "run", *KEYS])
        if done.returncode != 0:
            sys.exit(done.stderr)
        (place / "images").mkdir()
        run(place, ["data", "preview", CONFIG, "-o", "images", *overrides(["data.size=[32,32]"])])
        for file in list((place / "images").iterdir())[1:]:
            file.unlink()

        def make(folder, *old):
            for name in ("run", "images"):
                shutil.copytree(place / name, folder / name)
            for file in old:
                (folder / file).write_text("old")

        train = ["train", CONFIG, "-d", "cpu:1", "-o", "new", *KEYS]
        try_command("train", lambda folder: None, train, [], every)
        try_command("train --resume", make, ["train", CONFIG, "-d", "cpu:1", "-o", "run", "--resume", *KEYS, "-s",
                                             "run.max_iters=6"], [], every)
        for name, arguments, files in [
                ("export safetensors", ["export", "safetensors", "run", "-o", "a"], ["a"]),
                ("export onnx", ["export", "onnx", "run", "-o", "a"], ["a"]),
                ("report", ["report", "run", "--no-images", "-o", "a", "--figures", "figures"], ["a"]),
                ("logs export --csv", ["logs", "export", "run", "--csv", "a"], ["a"]),
                ("logs export --tensorboard", ["logs", "export", "run", "--tensorboard", "events"], []),
                ("logs plot --svg", ["logs", "plot", "run", "--svg", "a"], ["a"]),
                ("data preview", ["data", "preview", CONFIG, "-o", "pictures", *overrides(["data.size=[32,32]"])], []),
                ("predict", ["predict", "run", "images", "-o", "maps", "--probabilities"], [])]:
            try_command(name, lambda folder, files=files: make(folder, *files), arguments, files, every)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
