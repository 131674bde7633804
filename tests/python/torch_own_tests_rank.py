#!/usr/bin/env python3
"""PyTorch's own tests of SyncBatchNorm, as they stand in its package, on CPUs: torch_own_tests_rank.py RANK SIZE FOLDER.

One rank of them. The shim is here: torch.nn.SyncBatchNorm is this package's, what is sent to a GPU stays, and
DistributedDataParallel is not told of devices. Prints a line for each test.
"""
import os
import sys
import traceback
import unittest
from pathlib import Path

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
os.environ.update(BACKEND="gloo", INIT_METHOD=f"file://{FOLDER}/shared", TEMP_DIR=str(FOLDER), WORLD_SIZE=str(SIZE))

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

import lockstep.torch  # noqa: E402

TESTS = ["SyncBatchNorm_Channels_Last", "SyncBatchNorm", "SyncBatchNorm_No_Affine", "SyncBatchNorm_2D_Input",
         "SyncBatchNorm_Single_Input_Per_Process", "SyncBatchNorm_Diff_Input_Sizes_Running_Value",
         "SyncBatchNorm_Diff_Input_Sizes_gradient", "SyncBatchNorm_half"]
OTHERS = ["test_SyncBatchNorm_process_group", "test_sync_bn_logged", "test_ddp_inference"]


class SyncBatchNorm(lockstep.torch.SyncBatchNorm):
    """With PyTorch's name for convert()."""
    convert_sync_batchnorm = staticmethod(lockstep.torch.convert)


class OnCpus(nn.parallel.DistributedDataParallel):
    """That does not look at devices."""

    def __init__(self, module, device_ids=None, output_device=None, **options):
        super().__init__(module, **options)


def put_shim():
    nn.SyncBatchNorm = SyncBatchNorm
    lockstep.torch.convert.__globals__["SyncBatchNorm"] = SyncBatchNorm  # what DistributedDataParallel looks for in its log
    nn.parallel.DistributedDataParallel = OnCpus
    nn.Module.cuda = torch.Tensor.cuda = lambda self, *devices, **options: self
    torch.cuda.set_device = lambda rank: None
    randn = torch.randn
    torch.randn = lambda *shape, **options: randn(*shape, **{**options, "device": "cpu"})


class OwnTests(distributed_test.DistributedTest._DistTestBase, unittest.TestCase):
    """PyTorch's, by this rank of processes that are there already."""
    rank = RANK
    world_size = SIZE

    def _barrier(self, *_, **__):
        torch.distributed.barrier()

    def assertEqual(self, a, b, *_, **options):
        if isinstance(a, (torch.Tensor, float)):
            torch.testing.assert_close(a, b)
        else:
            super().assertEqual(a, b)


def main():
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{FOLDER}/meeting", rank=RANK, world_size=SIZE)
    put_shim()
    failed = 0
    for name in [f"test_DistributedDataParallel_{each}" for each in TESTS] + OTHERS:
        test = getattr(OwnTests, name, None)
        if test is None:
            print(f"{name}: not in this PyTorch", flush=True)
            continue
        while hasattr(test, "__wrapped__"):
            test = test.__wrapped__  # without the decorators that look for GPUs
        try:
            torch.manual_seed(0)
            test(OwnTests("assertTrue"))
            print(f"{name}: passed", flush=True)
        except Exception:
            failed += 1
            print(f"{name}: failed\n{traceback.format_exc()}", flush=True)
            if "GroupError" in traceback.format_exc():
                break  # ranks are apart
        torch.distributed.barrier()
    return failed


failures = main()
torch.distributed.destroy_process_group()  # its threads end before the interpreter does
sys.exit(failures)
