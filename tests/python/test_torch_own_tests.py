"""PyTorch's own tests of SyncBatchNorm, on this package's, with two and three ranks over gloo."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")
pytest.importorskip("torch.testing._internal.distributed")
if not torch.distributed.is_available() or torch.__version__ < "2":
    pytest.skip("they are written for PyTorch 2, with torch.distributed", allow_module_level=True)

RANK = Path(__file__).with_name("torch_own_tests_rank.py")


@pytest.mark.parametrize("size", [2, 3])
def test_they_pass(size, tmp_path):
    ranks = [subprocess.Popen([sys.executable, "-B", RANK, str(rank), str(size), tmp_path], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) for rank in range(size)]
    for rank in ranks:
        said, errors = rank.communicate(timeout=900)
        assert rank.returncode == 0, said + errors
        assert len(re.findall(r": passed$", said, re.MULTILINE)) >= 8, said
