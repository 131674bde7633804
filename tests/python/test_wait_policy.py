"""How long the module's threads look for others is in the environment while it is imported, and no longer."""
import os
import subprocess
import sys

import pytest

MODULE = """
import os
said = os.environ.get("GOMP_SPINCOUNT")
class Predictor:
    pass
DataParallel = ImportSummary = StepResult = load_weights = save_safetensors = None
"""
ASK = "import os, lockstep.native, lockstep_native; print(lockstep_native.said, os.environ.get('GOMP_SPINCOUNT'))"


@pytest.mark.parametrize("own, expected", [({}, "1000 None"), ({"GOMP_SPINCOUNT": "77"}, "77 77"),
                                           ({"OMP_WAIT_POLICY": "active"}, "None None")])
def test_the_module_is_loaded_with_a_short_wait(own, expected, tmp_path):
    (tmp_path / "lockstep_native.py").write_text(MODULE)
    environment = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run([sys.executable, "-B", "-c", ASK], capture_output=True, text=True,
                          env={**environment, **own, "PYTHONPATH": path})
    assert done.stdout.strip() == expected, done.stderr
