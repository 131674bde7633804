#!/usr/bin/env python3
"""Runs tools/measure/bench_vs_torch on stand-ins and reads its table."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
FIGURES = {"ms": {"cpu:1 local": 10, "cpu:8 sync": 10.5, "cpu:4 local": 10, "cpu:4 sync": 12, "cpu:2 local": 11, "cpu:2 sync": 11},
           "torch_ms": {"eager": 25, "compile": 20, "amp": 40, "processes": 50}, "version": "2.1.0", "speed": 90, "copy": 100,
           "us": 3, "seconds": 1e-5}


def run(*options, **changes):
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "stand_in"
        program.write_text(f"#!{sys.executable} -B\n" + (HERE / "stand_in.py").read_text())
        program.chmod(0o755)
        return subprocess.run([sys.executable, "-B", HERE.parents[1] / "tools/measure/bench_vs_torch", "--lockstep", program, *options,
                               "--rounds", "2", "--python", program],
                              capture_output=True, text=True, env=dict(os.environ, STAND_IN=json.dumps(FIGURES | changes)))


def cells_of(done):
    """The rows of all tables, without the titles."""
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in done.stdout.splitlines() if line.startswith("|")]
    return [row for row in rows if not set("".join(row)) <= set(":-")]


class BenchVsTorch(unittest.TestCase):
    def test_a_row_for_each_contender(self):
        rows = cells_of(run("--peers", "eager", "compile", "ddp"))
        figures = {row[1]: row[5:] for row in rows if row[0] == "unet"}
        self.assertEqual(figures["lockstep cpu:1"], ["10.0", "10.0", "10.0", "800.0", "100", "1.00"])
        self.assertEqual(figures["PyTorch eager"], ["25.0", "25.0", "25.0", "320.0", "400", "2.50"])
        self.assertEqual(figures["PyTorch compile"][-1], "2.00")
        self.assertEqual(figures["PyTorch DDP, 4 processes"][-1], "5.00")
        self.assertEqual(figures["PyTorch DDP SyncBatchNorm, 2 processes"][0], "refused: no such layer here")
        self.assertEqual({row[4] for row in rows if "4 processes" in row[1]}, {"4 x 1"})
        self.assertEqual(len([row for row in rows if row[0] == "unet"]), 6 + 2 + 2 + 4)

    def test_pytorch_takes_part_in_bf16_where_the_processor_multiplies_it(self):
        rows = cells_of(run("--peers", "eager", "bf16"))
        found = {row[1] for row in rows if row[0] == "unet"}
        flags = pathlib.Path("/proc/cpuinfo").read_text()
        peers = {"PyTorch bf16"} if "avx512_bf16" in flags or "amx_bf16" in flags else set()
        self.assertEqual({name for name in found if "bf16" in name}, {"lockstep cpu:1 bf16"} | peers)
        verdicts = {row[0]: row[1:] for row in rows if "bf16" in row[0]}
        if peers:
            self.assertEqual(verdicts, {"step: PyTorch 2.1.0 bf16 (faster format) / lockstep cpu:1 bf16": ["4.00", "at least 1.00", "met"]})

    def test_an_old_version_does_not_compile(self):
        rows = cells_of(run("--peers", "eager", "compile", version="1.13.0"))
        self.assertFalse([row for row in rows if "compile" in row[1]])

    def test_all_networks_are_one_table(self):
        done = run("--network", "all", "--peers", "eager")
        self.assertEqual({row[0] for row in cells_of(done)} & {"unet", "fcn_resnet50", "resnet50"}, {"unet", "fcn_resnet50", "resnet50"})
        self.assertEqual(sum(line.startswith("| network |") for line in done.stdout.splitlines()), 1)

    def test_targets(self):
        verdicts = {row[0]: row[1:] for row in cells_of(run("--peers", "eager"))}
        self.assertEqual(verdicts["step: PyTorch 2.1.0 eager (faster format) / lockstep cpu:1"], ["2.50", "at least 2.00", "met"])
        self.assertEqual(verdicts["step: 8 devices with 1 image, sync / 1 device with 8"], ["1.05", "at most 1.10", "met"])
        slow = {row[0]: row[-1] for row in cells_of(run("--peers", "eager", torch_ms={"eager": 19}))}
        self.assertEqual(slow["step: PyTorch 2.1.0 eager (faster format) / lockstep cpu:1"], "MISS")

    def test_evaluations(self):
        rows = cells_of(run("--eval"))
        self.assertIn(["360x480", "PyTorch eager", "2.1.0", "channels_last", "12.5", "12.5", "12.5", "25.0", "25.0", "25.0"], rows)

    def test_a_program_of_ours_that_fails_ends_it(self):
        done = run("--peers", "eager", broken="step")
        self.assertEqual((done.returncode, done.stderr.splitlines()[-1]), (1, "lockstep cpu:1: it broke"))


if __name__ == "__main__":
    unittest.main()
