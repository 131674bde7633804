#!/usr/bin/env python3
"""The tests of the Python package: run.py [LOCKSTEP] [PYTEST_ARGUMENTS...]. LOCKSTEP is the program; tests that need it, or
PyTorch, torchvision, pandas, matplotlib or mypy, say SKIPPED without."""
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main():
    try:
        import numpy  # noqa: F401
        import pytest
    except ImportError as error:
        print(f"SKIPPED: {sys.executable} lacks what the tests of the Python package need ({error})")
        return 0
    arguments = sys.argv[1:]
    if arguments and not arguments[0].startswith("-"):
        os.environ["LOCKSTEP_PROGRAM"] = str(Path(arguments.pop(0)).resolve())
    package = os.environ.get("LOCKSTEP_PACKAGE", str(HERE.parents[1] / "python"))  # a changed one, for planted faults
    os.environ["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])  # of processes
    os.environ["LOCKSTEP_AUTOTUNE"] = ""  # no clock decides what a test computes with
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # tests run beside others: no team spins while it waits
    sys.path.insert(0, package)
    return pytest.main(["-q", "-rs", "-p", "no:cacheprovider", f"--rootdir={HERE}", *(arguments or [str(HERE)])])


if __name__ == "__main__":
    sys.exit(main())
