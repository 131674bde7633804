"""Statistics of a channel as (count, mean, M2), where M2 is the sum of squared differences from the mean, and their merge."""
from typing import Iterator, List, NamedTuple, Tuple

import torch
from torch import Tensor

# Values that are looked at together. On a CPU their copies in float64 stay in the cache, and take no memory to speak of.
_PIECE_ON_CPU = 1 << 17
_PIECE = 1 << 25


class Moments(NamedTuple):
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


def shape_of_channels(x: Tensor) -> List[int]:
    """[1, C, 1, ...]: what a tensor [C] is viewed as to be broadcast over `x` [N, C, ...]."""
    return [1, x.shape[1]] + [1] * (x.dim() - 2)


def dims_of_values(x: Tensor) -> List[int]:
    """The dimensions of `x` [N, C, ...] that BatchNorm sums over: all but the channels."""
    return [0, *range(2, x.dim())]


def pieces(x: Tensor) -> Iterator[Tuple[slice, slice]]:
    """Cuts `x` [N, C, ...] into images and channels of a size to work on, channel by channel in the order of the images."""
    images, channels = x.shape[:2]
    most = _PIECE_ON_CPU if x.device.type == "cpu" else _PIECE
    of_channel = max(x.numel() // max(images * channels, 1), 1)
    wide = min(max(most // of_channel, 1), channels)
    long = max(most // (of_channel * wide), 1)
    for channel in range(0, channels, max(wide, 1)):
        for image in range(0, images, long):
            yield slice(image, image + long), slice(channel, channel + wide)


def local_moments(x: Tensor) -> Tensor:
    """Count, means and M2 of the channels of `x` [N, C, ...] as one tensor [1 + 2 C] in float64; zeros where `x` is empty."""
    channels = x.shape[1]
    packed = torch.zeros(1 + 2 * channels, dtype=torch.float64, device=x.device)
    if x.numel() == 0:
        return packed
    packed[0] = x.numel() // channels
    found = no_moments(channels, x.device)
    at = slice(0, 0)
    for images, chosen in pieces(x.detach()):
        if chosen != at:
            at, found = chosen, no_moments(len(range(channels)[chosen]), x.device)
        found = found.joined(_moments(x.detach()[images, chosen].to(torch.float64, copy=True)))
        packed[1:1 + channels][chosen] = found.mean
        packed[1 + channels:][chosen] = found.m2
    return packed


def _moments(values: Tensor) -> Moments:
    """Of a tensor that may be written to."""
    count = values.numel() // values.shape[1]
    mean = values.mean(dims_of_values(values))
    m2 = values.sub_(mean.view(shape_of_channels(values))).square_().sum(dims_of_values(values))
    return Moments(count, mean, m2)


def merge_moments(slots: Tensor) -> Moments:
    """Those of all `slots` [ranks, 1 + 2 C] of float64 together, merged in the order of the ranks."""
    channels = (slots.shape[1] - 1) // 2
    merged = no_moments(channels, slots.device)
    for slot in slots:
        merged = merged.joined(Moments(int(slot[0].item()), slot[1:1 + channels], slot[1 + channels:]))
    return merged
