"""What the tests share: the program, and one small run and comparison that it has made."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, os.environ.get("LOCKSTEP_PACKAGE", str(ROOT / "python")))
QUICKSTART = ROOT / "data/configs/quickstart.toml"
SMALL = {"run.max_iters": 4, "run.log_every": 2, "data.size": [32, 32], "data.train_images": 16, "data.val_images": 4,
         "model.width": 4, "model.depth": 2}


def native_module():
    """lockstep.native; skips the file that asks for it where it is not built."""
    from lockstep.errors import MissingPackageError
    try:
        from lockstep import native
    except MissingPackageError:
        pytest.skip("lockstep_native is not built: LOCKSTEP_PYTHON_MODULE=ON tools/build, where nanobind is",
                    allow_module_level=True)
    return native


@pytest.fixture(scope="session")
def program():
    """The path of the program."""
    path = os.environ.get("LOCKSTEP_PROGRAM")
    if not path:
        pytest.skip("there is no program: LOCKSTEP_PROGRAM is not set")
    return path


@pytest.fixture(scope="session")
def small_run(program, tmp_path_factory):
    """The folder of a run of four steps, mode sync on two devices."""
    import lockstep
    folder = tmp_path_factory.mktemp("run") / "small"
    lockstep.train(QUICKSTART, output=folder, devices="cpu:2", settings={**SMALL, "bn.mode": "sync"}, progress=False)
    return folder


@pytest.fixture(scope="session")
def small_comparison(program, tmp_path_factory):
    """The folder of a curve of local and sync over 1 and 2 images, two seeds."""
    import lockstep
    folder = tmp_path_factory.mktemp("compare") / "curve"
    lockstep.compare(QUICKSTART, output=folder, seeds=2, devices="cpu:1", images_per_device=[1, 2], settings=SMALL,
                     images=False, progress=False)
    return folder


@pytest.fixture
def json_of(program):
    """Runs a command of the program and returns its JSON."""
    import json

    def run(*arguments):
        done = subprocess.run([program, *map(str, arguments), "--json"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    return run
