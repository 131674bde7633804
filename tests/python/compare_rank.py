#!/usr/bin/env python3
"""One rank of lockstep.torch.compare() over gloo: compare_rank.py RANK SIZE OUTPUT [CASE]. Prints the error that ends it."""
import sys

import torch
from torch import nn

from lockstep.torch import compare, evaluate

RANK, SIZE, OUTPUT = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
CASE = sys.argv[4] if sys.argv[4:] else ""


def data(images):
    random = torch.Generator().manual_seed(5)
    x = torch.randn(images, 3, 8, 8, generator=random) + 2 * torch.randn(images, 3, 1, 1, generator=random)
    return x, (x[:, 0] > x[:, 0].mean((1, 2), keepdim=True)).long()


def training(trial):
    torch.manual_seed(trial.seed + (trial.rank if CASE == "seeds" else 0))
    net = trial.convert(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    whole = nn.parallel.DistributedDataParallel(net) if SIZE > 1 else net
    x, y = data(16)
    for part in torch.randperm(16, generator=torch.Generator().manual_seed(trial.seed)).split(4):
        own = part[trial.rank * trial.batch:(trial.rank + 1) * trial.batch]
        loss = nn.functional.cross_entropy(whole.train()(x[own]), y[own])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trial.log(loss.item())
    trial.score(lambda model: fails("scores") if CASE == "score" and RANK == 0 else evaluate(model, [data(8)], 2))


class Stays(Exception):
    """It cannot be pickled."""

    def __init__(self, text):
        super().__init__(text)
        self.made = lambda: text


def fails(line):
    raise Stays("out of paper")


torch.set_num_threads(1)
if SIZE > 1:
    torch.distributed.init_process_group("gloo", init_method=f"file://{OUTPUT}.meeting", rank=RANK, world_size=SIZE)
try:
    compare(training, output=OUTPUT, modes="local,sync,instance", seeds=2, global_batch=4, classes=["ground", "thing"],
            progress=fails if CASE == "progress" else False)
except Exception as error:
    print(error)
if SIZE > 1:
    torch.distributed.destroy_process_group()  # its threads end before the interpreter does
