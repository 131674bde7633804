"""Statistics of a channel as (count, mean, M2), where M2 is the sum of squared differences from the mean, and their merge."""
from typing import List, Tuple

import torch
from torch import Tensor


def shape_of_channels(x: Tensor) -> List[int]:
    """[1, C, 1, ...]: what a tensor [C] is viewed as to be broadcast over `x` [N, C, ...]."""
    return [1, x.shape[1]] + [1] * (x.dim() - 2)


def dims_of_values(x: Tensor) -> List[int]:
    """The dimensions of `x` [N, C, ...] that BatchNorm sums over: all but the channels."""
    return [0, *range(2, x.dim())]


def local_moments(x: Tensor) -> Tensor:
    """Count, means and M2 of the channels of `x` [N, C, ...] as one tensor [1 + 2 C] in float64; zeros where `x` is empty."""
    channels = x.shape[1]
    count = x.numel() // max(channels, 1)
    packed = torch.zeros(1 + 2 * channels, dtype=torch.float64, device=x.device)
    if count == 0:
        return packed
    values = x.detach().double()
    mean = values.mean(dims_of_values(x))
    packed[0] = count
    packed[1:1 + channels] = mean
    packed[1 + channels:] = (values - mean.view(shape_of_channels(x))).square().sum(dims_of_values(x))
    return packed


def merge_moments(slots: Tensor) -> Tuple[int, Tensor, Tensor]:
    """Count, means [C] and M2 [C] of all `slots` [ranks, 1 + 2 C] of float64 together, merged in the order of the ranks.

    Chan, Golub and LeVeque (1979), eq. 2.1, as `join_moments` of the program; a slot without values changes nothing.
    """
    channels = (slots.shape[1] - 1) // 2
    count = 0
    mean = torch.zeros(channels, dtype=torch.float64, device=slots.device)
    m2 = torch.zeros_like(mean)
    for slot in slots:
        added = int(slot[0].item())
        if added == 0:
            continue
        delta = slot[1:1 + channels] - mean
        share = added / (count + added)
        mean = mean + delta * share
        m2 = m2 + slot[1 + channels:] + delta.square() * (count * share)
        count += added
    return count, mean, m2
