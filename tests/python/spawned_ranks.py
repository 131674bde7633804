#!/usr/bin/env python3
"""A network that was converted before its processes began: spawned_ranks.py FOLDER. Each writes what it computes to FOLDER."""
import copy
import sys
from pathlib import Path

import torch

from lockstep.torch import GroupError, convert
from whole_batch import make_net, rank_steps

COUNTS = [2, 3]


def work(rank, net, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=len(COUNTS))
    net = copy.deepcopy(net)  # what is handed over is one memory for all
    torch.save(rank_steps(net, COUNTS, rank), folder / f"{rank}.pt")
    first = torch.distributed.new_group([0])
    apart = convert(make_net(), first)
    try:
        apart(torch.randn(2, 3, 6, 5, dtype=torch.float64))
        said = "trained"
    except GroupError as error:
        said = str(error)
    (folder / f"{rank}.said").write_text(said)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (convert(make_net()), Path(sys.argv[1])), nprocs=len(COUNTS))
