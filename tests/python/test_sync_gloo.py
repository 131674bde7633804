"""SyncBatchNorm over processes of torch.distributed with gloo: what one process computes, and failures that are named."""
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()
        if hasattr(torch.distributed, "is_gloo_available") else torch.distributed.is_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

from lockstep.torch import GroupError, ProcessGroup  # noqa: E402
from whole_batch import assert_ranks_are_whole, whole  # noqa: E402

RANK = Path(__file__).with_name("gloo_rank.py")
SIZE = 4
COUNTS = {"even": [2, 2, 2, 2], "uneven": [1, 4, 2, 1], "empty": [0, 3, 0, 5]}


def run(case, folder):
    """What each rank has written; None for one that has not come to that."""
    processes = [subprocess.Popen([sys.executable, "-B", RANK, case, str(rank), str(SIZE), folder], stderr=subprocess.PIPE,
                                  text=True) for rank in range(SIZE)]
    deadline = time.monotonic() + 280
    said = []
    for process in processes:
        try:
            said.append(process.communicate(timeout=max(1, deadline - time.monotonic()))[1])
        except subprocess.TimeoutExpired:
            for each in processes:
                each.kill()
            pytest.fail(f"{case}: a rank hangs")
    files = [folder / f"{rank}.pt" for rank in range(SIZE)]
    options = {"weights_only": False} if torch.__version__ >= "2" else {}
    return [torch.load(file, **options) if file.exists() else None for file in files], said


@pytest.mark.parametrize("case", COUNTS)
def test_ranks_are_one_process_with_the_whole_batch(case, tmp_path):
    ranks, said = run(case, tmp_path)
    assert None not in ranks, said
    assert_ranks_are_whole(ranks, COUNTS[case])


def test_ranks_with_many_open_files(tmp_path):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"no more than {hard} open files are allowed here")
    ranks, said = run("files", tmp_path)
    assert None not in ranks and not any("error" in each for each in ranks), (ranks, said)
    assert_ranks_are_whole(ranks, COUNTS["uneven"])


def test_with_distributed_data_parallel(tmp_path):
    ranks, said = run("data_parallel", tmp_path)
    assert None not in ranks, said
    expected, _ = whole(8)
    for results, _ in ranks:
        for number, wanted in enumerate(expected):
            for name, value in results[number].items():
                if name.startswith("d module."):
                    assert torch.allclose(SIZE * value, wanted[name.replace("module.", "")], rtol=1e-9, atol=1e-11), name


@pytest.mark.parametrize("case, guilty, message", [
    ("dies", 2, "rank 2 has left (its process ended, or it closed its group) before the forward of 0"),
    ("master_dies", 0, "rank 0 has left (its process ended, or it closed its group) before the forward of 0"),
    ("busy", 3, "rank 3 has left (its process ended, or it closed its group) before the forward of 0"),
    ("leaves", 2, "rank 2 has left (its process ended, or it closed its group) before the forward of 0"),
    ("closes", 2, "rank 2 has left (its process ended, or it closed its group) before the forward of 0"),
    ("raises", 1, "rank 1 failed: ValueError: no such image; it was last in the forward of 2"),
    ("skips", 3, "rank 3 is in the forward of 2, rank 0 in the forward of 0"),
    ("late", 1, "rank 1 has not come to the forward of 0, where rank 0 has waited for 1 s")])
def test_what_goes_wrong_is_named_on_all_other_ranks(case, guilty, message, tmp_path):
    seen, said = run(case, tmp_path)
    for rank in range(SIZE):
        if rank == guilty and case != "skips" and case != "late":
            continue
        assert seen[rank] is not None and "error" in seen[rank], (rank, said[rank])
        assert seen[rank]["rank"] == guilty and message in seen[rank]["error"], (rank, seen[rank])
        assert seen[rank]["seconds"] < 250, (rank, seen[rank])  # and not the 300 of the timeout


def test_without_torch_distributed_it_says_what_to_do():
    with pytest.raises(GroupError, match="init_process_group"):
        ProcessGroup()


def test_a_network_is_converted_before_its_processes_begin(tmp_path):
    done = subprocess.run([sys.executable, "-B", RANK.with_name("spawned_ranks.py"), tmp_path], capture_output=True, text=True,
                          timeout=280)
    assert done.returncode == 0, done.stderr
    options = {"weights_only": False} if torch.__version__ >= "2" else {}
    assert_ranks_are_whole([torch.load(tmp_path / f"{rank}.pt", **options) for rank in range(2)], [2, 3])
    assert (tmp_path / "0.said").read_text() == "trained"  # alone in its group
    assert "rank 1 of 2, and not in the process group that it was given" in (tmp_path / "1.said").read_text()
