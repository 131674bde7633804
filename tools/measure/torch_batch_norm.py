#!/usr/bin/env python3
"""Times PyTorch's SyncBatchNorm + ReLU, forward and backward, and its copy, on GPU 0, channels-last.

    python3 torch_batch_norm.py [--megabytes 4 32 64 256] [--channels 64] [--dtypes fp32 bf16] [--json]

The process is rank 0 of 4 in a process group of the backend "fake": its all-reduce does nothing, and its all-gather is
one small copy here, so that ranks and links cost nothing. What is timed is what SyncBatchNorm itself does for its rank.
"""
import argparse
import json
import statistics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

RANKS = 4
SIDE = 125  # of the images; with 64 channels their number then makes exactly the megabytes asked for
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def gather_own(output, own, *_, **__):
    """Every rank's part is this rank's. The fake backend's all-gather refuses the shape that SyncBatchNorm uses."""
    output.view(RANKS, -1).copy_(own)


def join_fake_group():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    for name in ("all_gather_into_tensor", "all_gather_single"):  # as PyTorch 2.11 and later ones call it
        if hasattr(dist, name):
            setattr(dist, name, gather_own)


def channels_last(shape, dtype):
    return torch.rand(shape, device="cuda").mul_(2).sub_(1).to(dtype).contiguous(memory_format=torch.channels_last)


def seconds_of(work, passes, rounds):
    """Median over rounds of what one of `passes` calls takes the device; the first round is not counted."""
    seconds = []
    for _ in range(rounds + 1):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(passes):
            work()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000 / passes)
    return statistics.median(seconds[1:])


def measure(megabytes, channels, dtype, rounds):
    element = torch.empty(0, dtype=DTYPES[dtype]).element_size()
    images = max(1, round(megabytes * 1e6 / (element * channels * SIDE * SIDE)))
    x = channels_last((images, channels, SIDE, SIDE), DTYPES[dtype]).requires_grad_()
    grad = channels_last(x.shape, DTYPES[dtype])
    norm = torch.nn.SyncBatchNorm(channels).cuda()

    def forward():
        return F.relu(norm(x), inplace=True)

    def forward_backward():
        torch.autograd.grad(forward(), (x, norm.weight, norm.bias), grad)

    expected = F.relu(F.batch_norm(x.detach().float(), None, None, training=True))
    right = torch.allclose(forward().detach().float(), expected, rtol=1e-2, atol=1e-2)
    passes = max(10, min(200, int(4e9 / (megabytes * 1e6))))
    source = x.detach()
    return {"dtype": dtype, "channels": channels, "rows": images * SIDE * SIDE,
            "tensor_bytes": x.numel() * element, "passes": passes, "right": right,
            "seconds": seconds_of(forward_backward, passes, rounds),
            "copy_seconds": seconds_of(lambda: grad.copy_(source), passes, rounds)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[4, 32, 64, 256], help="of a tensor")
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--dtypes", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    join_fake_group()
    cases = [measure(m, args.channels, d, args.rounds) for d in args.dtypes for m in args.megabytes]
    if args.json:
        print(json.dumps({"torch": torch.__version__, "device": torch.cuda.get_device_name(0), "cases": cases}))
        return
    for case in cases:
        print(f"{case['dtype']} {case['tensor_bytes'] / 1e6:6.0f} MB {1e6 * case['seconds']:10.1f} us"
              f"{'' if case['right'] else '  (wrong output)'}")


if __name__ == "__main__":
    main()
