#!/usr/bin/env python3
"""Runs tools/measure/gpu_bench on stand-ins and reads its rows."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
GPU_BENCH = HERE.parents[1] / "tools/measure/gpu_bench"
FIGURES = {"ms": {"cuda:0 local": 10, "cuda:0x4 sync": 10.5, "cuda:0x4 local": 10.4, "tf32": 4},
           "torch_ms": {"eager": 31.5, "graph": 12.6}, "speed": 90, "copy": 100, "torch_copy": 80, "us": 3.5,
           "seconds": 1e-5, "torch_seconds": 3e-5, "gpus": 2,
           "cudnn": {"batch_norm_relu fp32": 1.2e-5, "batch_norm_add_relu fp32": 3e-5, "group_batch_norm fp32": 9e-6}}


def rows_of(rounds=1, options=(), without_cudnn=False, **changes):
    """({what: (result, details)}, exit status)"""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "stand_in"
        program.write_text(f"#!{sys.executable} -B\n" + (HERE / "stand_in.py").read_text())
        program.chmod(0o755)
        if not without_cudnn:
            (pathlib.Path(folder) / "cudnn_batch_norm").symlink_to(program)
        done = subprocess.run(
            [sys.executable, "-B", GPU_BENCH, "--lockstep", program, "--python", program, "--nvidia-smi", program,
             "--rounds", str(rounds),
             "--tsv", *options],
            capture_output=True, text=True, env=dict(os.environ, STAND_IN=json.dumps({**FIGURES, **changes})))
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return {what: (result, details) for what, result, details in lines}, done.returncode


def find(rows, words):
    """The only row whose name has these words."""
    found = [row for what, row in rows.items() if words in what]
    assert len(found) == 1, f"{len(found)} rows have '{words}': {list(rows)}"
    return found[0]


class GpuBench(unittest.TestCase):
    def test_chosen_sections_only_and_no_longer_than_asked(self):
        rows, status = rows_of(options=["--sections", "exchange", "small"])
        self.assertEqual(status, 0)
        self.assertFalse([what for what in rows if "copy" in what or "U-Net 64" in what])
        rows, status = rows_of(options=["--sections", "exchange", "--seconds", "0"], hangs="exchange")
        self.assertEqual(status, 1)
        self.assertIn("timed out", rows["exchange"][1])

    def test_figures_and_targets(self):
        rows, status = rows_of(rounds=2)
        self.assertEqual(status, 0)
        self.assertEqual(find(rows, "copy, fp32, 64 MB"),
                         ("met", "0.90, target >= 0.88; 16 channels 0.91, 64 channels 0.90; copy 100 GB/s"))
        self.assertEqual(find(rows, "copy, fp32, 4 MB")[0], "measured")
        self.assertEqual(find(rows, "ours, fp32, 64 channels, 64 MB"), ("met", "3.00, target >= 1.60; 30 us / 10 us"))
        self.assertEqual(find(rows, "ours, fp32, 64 channels, 4 MB")[0], "MISSED")
        self.assertEqual(find(rows, "an exchange in a recorded chain"),
                         ("met", "3.50 us, target <= 4.00 us; 16 channels 3.5 us"))
        self.assertEqual(find(rows, "an exchange issued"), ("measured", "16 channels 40.0 us"))
        large = "U-Net 64, 8 of 360x480, bf16, CUDA graph"
        self.assertEqual(find(rows, f"one with their images, {large}"), ("met", "1.05, target <= 1.10"))
        self.assertEqual(find(rows, f"an exchange in a step, R = 4, {large}"),
                         ("met", "3.57 us, target <= 5.00 us; (sync - local) / 28"))
        self.assertEqual(find(rows, f"PyTorch eager / 4 replicas with sync, {large}"), ("met", "3.00, target >= 1.25"))
        self.assertEqual(find(rows, f"PyTorch CUDA graph / 4 replicas with sync, {large}"),
                         ("met", "1.20, target >= 1.15"))
        self.assertEqual(find(rows, "PyTorch eager / 4 replicas with sync, U-Net 16"), ("met", "3.00, target >= 2.00"))
        self.assertEqual(find(rows, "one with their images, U-Net 16"), ("met", "1.05, target <= 1.25"))
        self.assertEqual(find(rows, "fp32 / TF32"), ("measured", "2.50; 10.00 ms / 4.00 ms"))  # not beside bf16
        self.assertEqual(find(rows, "PyTorch eager TF32 / one replica, fp32 with TF32, U-Net 64"),
                         ("measured", "7.88; 31.50 ms / 4.00 ms"))
        fcn = "FCN-ResNet50, 8 of 512x512, bf16, CUDA graph"
        self.assertEqual(find(rows, f"PyTorch eager / one replica, {fcn}"), ("measured", "3.15; 31.50 ms / 10.00 ms"))
        self.assertEqual(find(rows, f"PyTorch compile / one replica, {fcn}")[0], "measured")
        self.assertNotIn("FAILED", [result for result, _ in rows.values()])

    def test_cudnns_own_batch_norm_stands_beside_ours(self):
        only = ["--sections", "batch_norm"]
        rows, status = rows_of(rounds=2, options=only)
        self.assertEqual(status, 0)
        self.assertEqual(find(rows, "cuDNN BatchNorm+ReLU / ours, fp32, 64 MB"),
                         ("measured", "16 channels 1.20 (12 us / 10 us); 64 channels 1.20 (12 us / 10 us)"))
        self.assertEqual(find(rows, "cuDNN BatchNorm+add+ReLU / ours, fp32, 64 MB")[1].partition(";")[0],
                         "16 channels 2.00 (30 us / 15 us)")  # beside ours with a residual
        self.assertEqual(find(rows, "cuDNN group BatchNorm / ours, 2 GPUs, fp32, 64 MB"),
                         ("measured", "16 channels 0.90 (9 us / 10 us); 64 channels 0.90 (9 us / 10 us); cuDNN's has no ReLU"))
        self.assertEqual(find(rows, "cuDNN group BatchNorm / ours, 4 GPUs"), ("SKIPPED", "it takes 4 GPUs, and 2 is here"))

        rows, status = rows_of(options=only, cudnn={"batch_norm_relu fp32": 1e-5}, gpus=1)
        self.assertEqual(status, 0)
        result, details = find(rows, "cuDNN BatchNorm+add+ReLU / ours")
        self.assertEqual(result, "SKIPPED")
        self.assertIn("16 channels NOT SUPPORTED: fp32 is not for batch_norm_add_relu", details)
        self.assertEqual(find(rows, "2 GPUs")[0], "SKIPPED")

        rows, status = rows_of(options=only, wrong="batch_norm_relu")
        self.assertEqual(status, 1)
        self.assertEqual(find(rows, "cuDNN BatchNorm+ReLU / ours")[0], "FAILED")
        self.assertEqual(find(rows, "cuDNN BatchNorm+add+ReLU / ours")[0], "measured")

    def test_no_cudnn_program_and_one_that_breaks_cost_the_others_nothing(self):
        only = ["--sections", "batch_norm"]
        rows, status = rows_of(options=only, without_cudnn=True)
        self.assertEqual(status, 0)
        self.assertEqual(find(rows, "beside cuDNN")[0], "SKIPPED")
        self.assertEqual(find(rows, "copy, fp32, 64 MB")[0], "met")
        rows, status = rows_of(options=only, broken="--gpus")
        self.assertEqual(status, 1)
        self.assertEqual(find(rows, "cuDNN BatchNorm")[1], "Failure: exit 1: it broke")
        self.assertEqual(find(rows, "copy, fp32, 64 MB")[0], "met")

    def test_misses_are_said_and_no_failure(self):
        slow = {"cuda:0 local": 10, "cuda:0x4 sync": 12, "cuda:0x4 local": 10, "tf32": 10}
        rows, status = rows_of(ms=slow, torch_copy=110, us=6, torch_ms={"eager": 13, "graph": 13})
        self.assertEqual(status, 0)
        self.assertIn("0.82, target >= 0.88", find(rows, "copy, fp32, 64 MB")[1])  # of the faster copy
        for words in ("copy, fp32, 64 MB", "an exchange in a recorded chain", "one with their images, U-Net 64",
                      "an exchange in a step, R = 4, U-Net 16", "PyTorch eager / 4 replicas with sync, U-Net 64",
                      "PyTorch CUDA graph", "PyTorch eager / 4 replicas with sync, U-Net 16"):
            self.assertEqual(find(rows, words)[0], "MISSED", words)

    def test_a_refused_setting_skips_what_needs_it_and_says_why(self):
        for key, name in (("precision", "fp32, CUDA graph"), ("cuda_graph", "bf16")):
            rows, status = rows_of(refused=key)
            self.assertEqual(status, 0)
            self.assertEqual(find(rows, "360x480, bf16, beside PyTorch"), ("SKIPPED", f"exit 2: run.{key}: not known"))
            self.assertEqual(find(rows, f"one with their images, U-Net 64, 8 of 360x480, {name}")[0], "met")

    def test_peak_memory_of_the_device(self):
        rows, status = rows_of(options=["--sections", "fcn"], memory=[1000, 3000])
        self.assertEqual(status, 0)
        self.assertEqual(find(rows, "peak device memory, FCN-ResNet50"), ("measured", "GB: cuda:0 local 2.10; " + "; ".join(f"PyTorch {how} 7.00 of tensors, 8.00 with context and cache"
                                              for how in ("eager", "eager TF32", "compile"))))

        rows, status = rows_of(options=["--sections", "small"], memory=[1000, 3000])
        self.assertIn("cuda:0 local 2.10; cuda:0x4 sync 2.10; PyTorch", find(rows, "peak device memory, U-Net 16")[1])
        rows, status = rows_of(options=["--sections", "fcn", "--nvidia-smi", "/nowhere/nvidia-smi"])
        result, details = find(rows, "peak device memory")
        self.assertEqual((status, result), (0, "SKIPPED"))
        self.assertIn("PyTorch compile 7.00 of tensors", details)

    def test_a_contender_that_fails_costs_the_others_nothing(self):
        rows, status = rows_of(options=["--sections", "large"], broken="--compile")
        self.assertEqual(status, 1)
        self.assertEqual(find(rows, "PyTorch compile, U-Net 64")[1], "Failure: exit 1: it broke")
        self.assertEqual(find(rows, "PyTorch eager / 4 replicas with sync")[0], "met")
        self.assertEqual(find(rows, "4 replicas with sync / one")[0], "met")

    def test_no_pytorch_skips_what_needs_it(self):
        rows, status = rows_of(broken="-c")
        self.assertEqual(status, 0)
        self.assertEqual(find(rows, "beside PyTorch SyncBatchNorm")[0], "SKIPPED")
        self.assertEqual(find(rows, "U-Net 64, 8 of 360x480, bf16, beside PyTorch")[0], "SKIPPED")

    def test_a_broken_program_fails_its_rows_only(self):
        rows, status = rows_of(broken="exchange")
        self.assertEqual(status, 1)
        self.assertEqual(rows["exchange"], ("FAILED", "Failure: exit 1: it broke"))
        self.assertEqual(find(rows, "one with their images, U-Net 64")[0], "met")
        rows, status = rows_of(broken="run.cuda_graph=true")
        self.assertEqual(status, 1)
        self.assertEqual(rows["a step with run.cuda_graph=true"][0], "FAILED")


if __name__ == "__main__":
    unittest.main()
