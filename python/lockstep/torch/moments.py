"""Statistics of a channel as (count, mean, M2), where M2 is the sum of squared differences from the mean, and their merge."""
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Of `count` values of each channel: means [C] and M2 [C], in float64."""
    count: int
    mean: Tensor
    m2: Tensor

    def joined(self, other: "Moments") -> "Moments":
        """Those of both together, by Chan, Golub and LeVeque (1979), eq. 2.1, as `join_moments` of the program; without values
        one changes nothing."""
        if other.count == 0:
            return self
        count = self.count + other.count
        delta = other.mean - self.mean
        share = other.count / count
        return Moments(count, self.mean + delta * share, self.m2 + other.m2 + delta.square() * (self.count * share))


def no_moments(channels: int, device: torch.device) -> Moments:
    """Those of no values."""
    zeros = torch.zeros(channels, dtype=torch.float64, device=device)
    return Moments(0, zeros, zeros.clone())


def merge_moments(slots: Tensor) -> Moments:
    """Those of all `slots` [ranks, 1 + 2 C] of float64 together, merged in the order of the ranks."""
    channels = (slots.shape[1] - 1) // 2
    merged = no_moments(channels, slots.device)
    for slot in slots:
        merged = merged.joined(Moments(int(slot[0].item()), slot[1:1 + channels], slot[1 + channels:]))
    return merged
