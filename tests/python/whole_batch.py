"""One process with the whole batch and PyTorch's own BatchNorm: what ranks are compared with. Everything in float64."""
import copy

import torch
from torch import nn


class Net(nn.Module):
    """Two convolutions and a linear layer, with BatchNorm of images and of vectors."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.first = nn.BatchNorm2d(4)
        self.second = nn.BatchNorm2d(4, momentum=None, eps=1e-3)
        self.linear = nn.Linear(4, 5)
        self.last = nn.BatchNorm1d(5, momentum=0.3)

    def forward(self, x):
        x = torch.relu(self.first(self.conv(x)))
        x = torch.tanh(self.second(x * x + 0.3 * x))
        return self.last(self.linear(x.mean((2, 3))))


def make_net():
    torch.manual_seed(3)
    net = Net().double()
    with torch.no_grad():
        for layer in (net.first, net.second, net.last):
            layer.weight.uniform_(0.5, 2)
            layer.bias.uniform_(-1, 1)
            if layer is not net.second:
                layer.running_mean.uniform_(-1, 1)
                layer.running_var.uniform_(0.5, 2)
    return net


def make_batch(images):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(images, 3, 6, 5, dtype=torch.float64, generator=generator)
    return x * torch.linspace(0.5, 3, images, dtype=torch.float64).view(-1, 1, 1, 1) + torch.arange(images).view(-1, 1, 1, 1)


def cotangent(images):
    """What the output is multiplied by: a sum alone has no gradient through a normalised value."""
    return torch.randn(images, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def step(net, x, weight):
    """Output, gradient of x, gradients of the parameters."""
    x = x.clone().requires_grad_()
    y = net(x)
    (y * weight).sum().backward()
    return {"y": y.detach(), "dx": x.grad, **{f"d {name}": each.grad.clone() for name, each in net.named_parameters()}}


def whole(images, steps=2):
    """Results of each step with the whole batch, and the buffers after them."""
    net = make_net()
    results = []
    for number in range(steps):
        net.zero_grad()
        results.append(step(net, make_batch(images) + number, cotangent(images)))
    return results, copy.deepcopy(dict(net.named_buffers()))


def rank_steps(net, counts, rank, steps=2):
    """Those of a rank that has counts[rank] images, those after the ranks before it."""
    images, first = sum(counts), sum(counts[:rank])
    part = slice(first, first + counts[rank])
    results = []
    for number in range(steps):
        net.zero_grad()
        results.append(step(net, (make_batch(images) + number)[part], cotangent(images)[part]))
    return results, dict(net.named_buffers())


def assert_ranks_are_whole(ranks, counts):
    """Outputs and input gradients put together, gradients of parameters added, buffers alike, to float64's rounding."""
    expected, buffers = whole(sum(counts))
    for number, wanted in enumerate(expected):
        for name, value in wanted.items():
            parts = [results[number][name] for results, _ in ranks]
            got = torch.cat(parts) if name in ("y", "dx") else torch.stack(parts).sum(0)
            assert torch.allclose(got, value, rtol=1e-9, atol=1e-11), (number, name, (got - value).abs().max())
    for _, of_rank in ranks:
        for name, value in buffers.items():
            assert torch.allclose(of_rank[name], value, rtol=1e-12, atol=1e-14), name
            assert torch.equal(of_rank[name], ranks[0][1][name]), f"{name} is not bitwise identical on all ranks"
