#!/usr/bin/env python3
"""How far from the truth are the usual ways to train five images on four devices?

    uneven_shards.py RUN_MODEL          (build/release/bin/run_model)

ResNet-18 of torchvision, random weights, one step on shards of 2, 2, 1 and 0 images. The truth is PyTorch in float64 on
the whole batch. The other ways are computed in float64, too, so that only what they compute differs, not how they round:
statistics of devices averaged without their counts, the loss averaged over devices, or no exchange at all. Printed are
relative distances of the gradient (root mean square over the tensors) and of the new running statistics.
"""
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "models"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "oracle"))

import torch
from torch import nn
import torchvision_test as oracle

SHARDS = [2, 2, 1]  # torch.chunk of 5 over 4 leaves the last device without an image
CASE = ("resnet18", False, 8, (5, 64, 64), 1)


def mean_of_means(parts):
    """Every device counts the same, and what lies between their means is not there."""
    return (torch.stack([part.mean((0, 2, 3)) for part in parts]).mean(0),
            torch.stack([part.var((0, 2, 3), unbiased=False) for part in parts]).mean(0))


def mean_of_squares(parts):
    """As before, but with the mean of squares, so that what lies between the means is there."""
    mean = torch.stack([part.mean((0, 2, 3)) for part in parts]).mean(0)
    return mean, torch.stack([(part ** 2).mean((0, 2, 3)) for part in parts]).mean(0) - mean ** 2


def normalize(bn, x, mean, var):
    scale = bn.weight / torch.sqrt(var + bn.eps)
    return (x - mean.view(1, -1, 1, 1)) * scale.view(1, -1, 1, 1) + bn.bias.view(1, -1, 1, 1)


def keep(bn, mean, var, count):
    with torch.no_grad():
        bn.running_mean.lerp_(mean, 0.1)
        bn.running_var.lerp_(var * count / (count - 1), 0.1)


def exchanged(statistics):
    def forward(bn, x):
        if not bn.training:
            return nn.functional.batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias, False, 0, bn.eps)
        mean, var = statistics(x.split(SHARDS))
        keep(bn, mean, var, x.numel() / x.shape[1])
        return normalize(bn, x, mean, var)
    return forward


def local(bn, x):
    if not bn.training:
        return nn.functional.batch_norm(x, bn.running_mean, bn.running_var, bn.weight, bn.bias, False, 0, bn.eps)
    results = []
    for rank, part in enumerate(x.split(SHARDS)):
        mean, var = part.mean((0, 2, 3)), part.var((0, 2, 3), unbiased=False)
        if rank == 0:
            keep(bn, mean, var, part.numel() / part.shape[1])
        results.append(normalize(bn, part, mean, var))
    return torch.cat(results)


def loss_by_device(results, labels):
    losses = [nn.functional.cross_entropy(y, t) for y, t in zip(results["out"].split(SHARDS), labels.split(SHARDS))]
    return torch.stack(losses).mean()


WAYS = {  # forward pass of BatchNorm (None: PyTorch's, of the whole batch), loss (None: the mean over the whole batch)
    "loss averaged over devices": (None, loss_by_device),
    "statistics: means of the devices' means and mean squares": (exchanged(mean_of_squares), None),
    "statistics: means of the devices' means and variances": (exchanged(mean_of_means), None),
    "both of the last, and the loss averaged over devices": (exchanged(mean_of_means), loss_by_device),
    "no exchange (DataParallel)": (local, None),
}


def run(net, state, images, labels, dtype, forward=None, loss=None):
    net.load_state_dict(state)
    saved = nn.BatchNorm2d.forward, oracle.loss_of
    nn.BatchNorm2d.forward = forward or saved[0]
    oracle.loss_of = loss or saved[1]
    try:
        return oracle.expected(net, images, labels, True, dtype)
    finally:
        nn.BatchNorm2d.forward, oracle.loss_of = saved


def main():
    torch.manual_seed(7)
    net = oracle.make_network(*CASE[:3])
    oracle.randomize(net)
    images = torch.randn(1, 5, 3, 64, 64) + torch.randn(1, 5, 3, 1, 1)
    labels = torch.randint(0, oracle.CLASSES, (1, 5))
    state = {key: value.clone() for key, value in net.state_dict().items()}
    initial = {key: value.double().numpy().copy() for key, value in state.items()}
    with tempfile.TemporaryDirectory() as folder:
        ours = oracle.ours(sys.argv[1], pathlib.Path(folder), net, CASE, images, labels)
    results = {"Lockstep, sync, cpu:4 (float32)": ours}
    results["PyTorch, one device (float32)"] = run(net, state, images, labels, torch.float32)
    truth = run(net, state, images, labels, torch.float64)
    for name, (forward, loss) in WAYS.items():
        results[name] = run(net, state, images, labels, torch.float64, forward, loss)
    print("| five images on four devices | gradient | running statistics |\n|:--|--:|--:|")
    for name, result in results.items():
        errors = oracle.errors_of(truth, initial, result)
        print(f"| {name} | {errors['grad']:.1e} | {errors['first, statistics']:.1e} |")


if __name__ == "__main__":
    main()
