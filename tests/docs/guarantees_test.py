#!/usr/bin/env python3
"""Runs the commands of docs/understand/guarantees.md as they are written, one after another, in one shell and one folder.

    guarantees_test.py ROOT LOCKSTEP

Every comparison of checkpoints must say "identical". What needs mpirun is left out where there is none, and what
imitates another processor where qemu-x86_64 is missing.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# A comparison: a call of the page's function `same`, or cmp by itself.
COMPARISON = re.compile(r"&& same \w|^cmp ", re.MULTILINE)


def blocks(page, without):
    for block in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        if not any(program in block for program in without):
            yield block


def main():
    root, program = (Path(word).resolve() for word in sys.argv[1:3])
    with_mpi = shutil.which("mpirun") is not None and (program.parent / "liblockstep_mpi.so").exists()
    with_qemu = shutil.which("qemu-x86_64") is not None
    without = [name for name, there in (("mpirun", with_mpi), ("qemu-x86_64", with_qemu)) if not there]
    script = "".join(blocks((root / "docs/understand/guarantees.md").read_text(), without))
    compared = len(COMPARISON.findall(script))
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    identical = done.stdout.splitlines().count("identical")
    if not with_mpi:
        print("guarantees: SKIPPED: several processes, for which there is no mpirun or no liblockstep_mpi.so")
    if not with_qemu:
        print("guarantees: SKIPPED: another processor, which is in the first part of a check, where qemu-x86_64 is installed")
    print(f"guarantees: {identical} of {compared} comparisons are bitwise identical")
    if done.returncode != 0 or identical != compared or compared < 6:
        sys.exit(f"the page's commands exit with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")


main()
