#!/usr/bin/env python3
"""Runs the examples of every --help, one after another in one folder, as a reader would.

examples_test.py SOURCE BUILD LOCKSTEP. Trainings get a few small images; what needs GPUs is only parsed.
"""
import re
import subprocess
import sys
import tempfile
import os
from pathlib import Path

SMALL = ("-s 'data.size=[32,48]' -s data.train_images=8 -s data.val_images=2 -s model.width=4 -s run.max_iters=4 "
         "-s run.checkpoint_every=1")
# These read the configuration that they are given; the others read runs, which have their own.
TAKE_SMALL = re.compile(r"lockstep (train|compare \S+\.toml|data|plan|bench step|eval .*-c) ")


def examples_of(text):
    found = re.search(r"^Examples:\n(.*?)^$", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^  (lockstep.*)$", found.group(1), re.MULTILINE) if found else []


def shell(command, folder, program):
    environment = os.environ | {"PATH": f"{Path(program).parent}:{os.environ['PATH']}"}
    return subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=False)


def all_examples(folder, program):
    """Subcommand by subcommand, none twice."""
    helps = [shell("lockstep --help", folder, program).stdout]
    names = re.findall(r"^  (\w+) ", helps[0][helps[0].index("Subcommands:"):].split("Examples:")[0], re.MULTILINE)
    commands = {}
    for name in names:
        mine = examples_of(shell(f"lockstep {name} --help", folder, program).stdout)
        if not mine:
            sys.exit(f"examples: lockstep {name} --help has none")
        commands |= dict.fromkeys(mine)
    return list(commands | dict.fromkeys(examples_of(helps[0])))


def wrong_with(command, done):
    if "cuda:" in command:  # parsed: it is the GPU that is not there
        return "unexpected" in done.stderr or not (done.returncode == 0 or "cuda" in done.stderr)
    return done.returncode != 0


def main():
    program = sys.argv[3]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        photos = shell(f"lockstep data preview data/configs/quickstart.toml {SMALL} -n 2 -o all && mkdir photos && "
                       "mv all/*_image.png photos", folder, program)
        if photos.returncode != 0:
            sys.exit(photos.stdout + photos.stderr)
        examples = all_examples(folder, program)
        for example in examples:
            program_part, _, rest = example.partition(" > ")
            small = f"{program_part} {SMALL}" if TAKE_SMALL.match(example + " ") else program_part
            if program_part.startswith("lockstep quickstart"):
                small += " --seeds 1"
            done = shell(small + (f" > {rest}" if rest else ""), folder, program)
            if wrong_with(example, done):
                wrong += 1
                print(f"examples: `{small}` exits with {done.returncode}\n{done.stdout}{done.stderr}")
    print(f"examples: {len(examples) - wrong} of {len(examples)} run")
    return 1 if wrong or len(examples) < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
