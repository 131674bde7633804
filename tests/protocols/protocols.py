#!/usr/bin/env python3
"""Protocols of the GPU code as small models, all of whose interleavings Spin goes through.

    protocols.py [MODEL.pml...]

The comment that a model begins with names its variants, as macros to define. `// right:` must end in every order of
events, with no assertion violated. `// wrong:` has a mistake planted, a wait left out or two steps in the wrong order,
and an order of events that shows it must be found. Needs Spin (Debian: spin) and a C compiler; without them it says
SKIPPED.
"""
import argparse
import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
VARIANT = re.compile(r"^// (right|wrong):((?: [A-Z_]+)*)(?: {2,}\S.*)?$", re.MULTILINE)
MOST_STEPS = 100_000  # of one interleaving; where that is not enough, the search says so
SECONDS = 120


class Broken(Exception):
    """A model that says nothing: it does not compile, or is too large."""


@dataclasses.dataclass
class Variant:
    model: pathlib.Path
    right: bool
    macros: list

    def __str__(self):
        return " ".join([self.model.stem, *self.macros])


def variants_of(model):
    text = model.read_text()
    found = [Variant(model, match.group(1) == "right", match.group(2).split()) for match in VARIANT.finditer(text)]
    for variant in found:
        for macro in variant.macros:
            if not re.search(rf"^#if.*\b{macro}\b", text, re.MULTILINE):
                raise Broken(f"{model.name}: nothing depends on {macro}")
    if not any(v.right for v in found) or all(v.right for v in found):
        raise Broken(f"{model.name}: names no right or no wrong variant")
    return found


def run(command, folder):
    done = subprocess.run(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=SECONDS)
    return done.returncode, done.stdout


def search(variant):
    """(what Spin found wrong, empty for nothing; how many states it went through)"""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(variant.model, folder)
        model = [*(f"-D{macro}" for macro in variant.macros), variant.model.name]
        for command in (["spin", "-a", *model],
                        ["cc", "-O1" if variant.right else "-O0", "-w", "-DSAFETY", "-o", "pan", "pan.c"]):
            status, output = run(command, folder)
            if status != 0 or "Error" in output:
                raise Broken(f"{variant}: {' '.join(command)} failed:\n{output}")
        _, output = run(["./pan", f"-m{MOST_STEPS}"], folder)
        states = re.search(r"(\d+) states, stored", output)
        errors = re.search(r"errors: (\d+)", output)
        wrong = re.search(r"^pan:\d+: (.*?) \(at depth (\d+)\)", output, re.MULTILINE)
        if not states or not errors or "too small" in output or "out of memory" in output or "Interrupted" in output:
            raise Broken(f"{variant}: the search did not end:\n{output}")
        if errors.group(1) == "0":
            return "", int(states.group(1))
        _, trail = run(["spin", "-t", "-p", *model], folder)
        return f"{wrong.group(1) if wrong else 'an error'}\n{trail}", int(states.group(1))


def judge(variant):
    """(what is wrong with the outcome, else a line that tells it)"""
    try:
        found, states = search(variant)
    except Broken as broken:
        return str(broken), ""
    except subprocess.TimeoutExpired:
        return f"{variant}: the search takes longer than {SECONDS} s", ""
    if variant.right and found:
        return f"{variant}: {found}", ""
    if not variant.right and not found:
        return f"{variant}: the mistake is not found in {states} states", ""
    return "", f"{variant}: {found.splitlines()[0] if found else 'no error'} ({states} states)"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=pathlib.Path, default=sorted(HERE.glob("*.pml")), metavar="MODEL")
    args = parser.parse_args()
    for tool in ("spin", "cc"):
        if not shutil.which(tool):
            print(f"SKIPPED: {tool} is not here; tools/setup --dev installs it")
            return 0
    failures = 0
    try:
        variants = [variant for model in args.models for variant in variants_of(model)]
    except Broken as broken:
        print(f"FAILED: {broken}")
        return 1
    for variant in variants:
        failure, line = judge(variant)
        print(f"FAILED: {failure}" if failure else line, flush=True)
        failures += bool(failure)
    right = sum(variant.right for variant in variants)
    print(f"{right} variants hold in every order of events, {len(variants) - right} planted mistakes are found"
          if not failures else f"{failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
