"""The passes over a batch that SyncBatchNorm makes, piece by piece, with PyTorch's plain functions: for any device and type.

What is computed in is float32, or float64 for float64; sums are in float64. fused.py has the same for a CPU.
"""
from typing import Iterator, List, Optional, Tuple

import torch
from torch import Tensor

from .moments import Moments, no_moments

# Values that are looked at together, so that copies of them take no memory to speak of, and on a CPU stay in its cache.
_ON_CPU = 1 << 17
_ELSEWHERE = 1 << 25


def moments(x: Tensor) -> Tensor:
    """Count, means and M2 of the channels of `x` [N, C, ...] as one tensor [1 + 2 C] in float64."""
    channels = x.shape[1]
    packed = torch.zeros(1 + 2 * channels, dtype=torch.float64, device=x.device)
    packed[0] = x.numel() // channels
    found = no_moments(channels, x.device)
    at = slice(0, 0)
    for images, chosen in _pieces(x):
        if chosen != at:
            at, found = chosen, no_moments(len(range(channels)[chosen]), x.device)
        found = found.joined(_moments(x[images, chosen].to(torch.float64, copy=True)))
        packed[1:1 + channels][chosen] = found.mean
        packed[1 + channels:][chosen] = found.m2
    return packed


def normalised(x: Tensor, mean: Tensor, var: Tensor, eps: float, weight: Optional[Tensor], bias: Optional[Tensor]) -> Tensor:
    """weight (x - mean) / sqrt(var + eps) + bias."""
    scale = (var + eps).rsqrt() if weight is None else (var + eps).rsqrt() * weight.double()
    output = torch.empty_like(x)
    for images, chosen in _pieces(x):
        part = _centred(x[images, chosen], mean[chosen])
        part.mul_(_over(part, scale[chosen]))
        output[images, chosen] = part if bias is None else part.add_(_over(part, bias[chosen]))
    return output


def gradient_sums(x: Tensor, dy: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """[2 C] of float64: the sum of dy, and that of dy (x - mean)."""
    channels = x.shape[1]
    sums = torch.zeros(2 * channels, dtype=torch.float64, device=x.device)
    for images, chosen in _pieces(x):
        centred = _centred(x[images, chosen], mean[chosen])
        part = dy[images, chosen].to(centred.dtype)
        sums[:channels][chosen] += part.sum(_dims(part), dtype=torch.float64)
        sums[channels:][chosen] += centred.mul_(part).sum(_dims(part), dtype=torch.float64)
    return sums


def input_gradient(x: Tensor, dy: Tensor, mean: Tensor, scale: Tensor, of_mean: Tensor, of_variance: Tensor) -> Tensor:
    """scale (dy - of_mean - (x - mean) of_variance)."""
    dx = torch.empty_like(x)
    for images, chosen in _pieces(x):
        part = _centred(x[images, chosen], mean[chosen])
        part.mul_(_over(part, -of_variance[chosen])).add_(dy[images, chosen])
        dx[images, chosen] = part.sub_(_over(part, of_mean[chosen])).mul_(_over(part, scale[chosen]))
    return dx


def _pieces(x: Tensor) -> Iterator[Tuple[slice, slice]]:
    """Cuts `x` [N, C, ...] into images and channels, channel by channel in the order of the images."""
    images, channels = x.shape[:2]
    most = _ON_CPU if x.device.type == "cpu" else _ELSEWHERE
    of_channel = max(x.numel() // max(images * channels, 1), 1)
    wide = min(max(most // of_channel, 1), channels)
    long = max(most // (of_channel * max(wide, 1)), 1)
    for channel in range(0, channels, max(wide, 1)):
        for image in range(0, images, long):
            yield slice(image, image + long), slice(channel, channel + wide)


def _moments(values: Tensor) -> Moments:
    """Of a tensor that may be written to."""
    count = values.numel() // values.shape[1]
    mean = values.mean(_dims(values))
    m2 = values.sub_(mean.view(_shape(values))).square_().sum(_dims(values))
    return Moments(count, mean, m2)


def _dims(x: Tensor) -> List[int]:
    """What BatchNorm sums over: all but the channels."""
    return [0, *range(2, x.dim())]


def _shape(x: Tensor) -> List[int]:
    """[1, C, 1, ...]: what a tensor [C] is viewed as to be broadcast over `x` [N, C, ...]."""
    return [1, x.shape[1]] + [1] * (x.dim() - 2)


def _over(x: Tensor, of_channels: Tensor) -> Tensor:
    return of_channels.to(_precision(x)).view(_shape(x))


def _precision(x: Tensor) -> torch.dtype:
    """What is computed in: half precision is not enough."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _centred(x: Tensor, mean: Tensor) -> Tensor:
    return x.to(_precision(x)) - _over(x, mean)
