#!/usr/bin/env python3
"""One rank of a test over gloo: gloo_rank.py CASE RANK SIZE FOLDER. Writes what it has seen to FOLDER/RANK.pt."""
import os
import resource
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from lockstep.torch import GroupError, ProcessGroup, convert
from lockstep.torch.groups import Call
from whole_batch import make_net, rank_steps

COUNTS = {"even": [2, 2, 2, 2], "uneven": [1, 4, 2, 1], "empty": [0, 3, 0, 5]}


def two_layers(group):
    torch.manual_seed(0)
    return convert(nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5)), group), torch.randn(2, 3, 4, 4)


def dies(rank):
    net, x = two_layers(ProcessGroup(timeout=300))
    net(x).sum().backward()
    if rank == 2:
        os._exit(9)
    net(x)


def one_dies(rank, dying, others=lambda: None):
    """Between two forward passes; what the others do meanwhile."""
    net, x = two_layers(ProcessGroup(timeout=300))
    net(x)
    if rank == dying:
        os._exit(9)
    others()
    net(x)


def master_dies(rank):
    one_dies(rank, 0)


def raises(rank):
    with ProcessGroup(timeout=300) as group:
        net, x = two_layers(group)
        net(x)
        if rank == 1:
            raise ValueError("no such image")
        net(x)


def skips(rank):
    net, x = two_layers(ProcessGroup(timeout=300))
    if rank == 3:
        net[2](torch.randn(2, 5, 4, 4))
    else:
        net(x)


def wait_for_the_master_s_error():
    while not Path(sys.argv[4], "0.pt").exists():
        time.sleep(0.05)


def late(rank):
    group = ProcessGroup()
    group.timeout = 1.0  # from here on: making the group may take longer on a machine that is busy
    net, x = two_layers(group)
    if rank == 1:
        wait_for_the_master_s_error()
    net(x)


def busy(rank):
    """Rank 3 dies, and rank 1 learns of it long after the master has."""
    one_dies(rank, 3, wait_for_the_master_s_error if rank == 1 else lambda: None)


def leaves(rank):
    net, x = two_layers(ProcessGroup(timeout=300))
    for _ in range(1 if rank == 2 else 2):
        net(x)


def closes(rank):
    """Rank 2 closes its group, while a process that was forked from it goes on."""
    group = ProcessGroup(timeout=300)
    net, x = two_layers(group)
    net(x)
    if rank == 2:
        child = os.fork()
        if child == 0:
            time.sleep(300)
            os._exit(0)
        group.close()
        wait_for_the_master_s_error()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return
    net(x)


def files(rank):
    """Connections have numbers above what select() takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    held = [open(os.devnull) for _ in range(1100)]
    seen = rank_steps(convert(make_net()), COUNTS["uneven"], rank)
    assert len(held) == 1100
    return seen


def data_parallel(rank):
    """DistributedDataParallel takes the mean of gradients: of a loss that is a mean over the whole batch times ranks."""
    net = nn.parallel.DistributedDataParallel(convert(make_net()))
    return rank_steps(net, COUNTS["uneven"], rank)


def main():
    case, rank, size, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    if case in COUNTS:
        group = ProcessGroup()
        time.sleep(0.02 * (size - rank))  # the last comes first
        order = group.all_show(Call("order", "forward", 1), torch.tensor([float(rank)]))
        assert order.flatten().tolist() == list(range(size))
        torch.save(rank_steps(convert(make_net(), group), COUNTS[case], rank), folder / f"{rank}.pt")
        return
    begin = time.monotonic()
    try:
        seen = globals()[case](rank)
    except GroupError as error:
        seen = {"error": str(error), "rank": error.rank, "seconds": time.monotonic() - begin}
    torch.save(seen, folder / f"{rank}.new")
    (folder / f"{rank}.new").rename(folder / f"{rank}.pt")


main()
torch.distributed.destroy_process_group()  # its threads end before the interpreter does
