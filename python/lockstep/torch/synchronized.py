"""functional.batch_norm by the statistics of all ranks."""
from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor

from .calls import BatchNormCall
from .groups import Call, Group
from .moments import Moments, dims_of_values, local_moments, merge_moments, pieces, shape_of_channels


def synchronized(call: BatchNormCall, group: Group, label: str) -> Tensor:
    """What `call` answers in training when all ranks of `group` share their statistics. `label`: the layer in messages.

    Raises ValueError on all ranks where they have one value per channel together, and GroupError (see Group).
    """
    packed = local_moments(call.input)
    found = merge_moments(group.all_show(Call(label, "forward", packed.numel()), packed))
    if found.count == 1:
        raise ValueError(f"{label}: batch statistics need more than one value per channel, and all ranks together have 1; use "
                         f"a larger batch or images")
    if found.count > 0:
        _track(call, found)
    invstd = (found.m2 / max(found.count, 1) + call.eps).rsqrt()

    def exchange(sums: Tensor) -> Tensor:
        return group.all_show(Call(label, "backward", sums.numel()), sums)

    output: Tensor = _Normalize.apply(call.input, call.weight, call.bias, found.mean, invstd, found.count, exchange)
    return output


def _track(call: BatchNormCall, found: Moments) -> None:
    with torch.no_grad():
        if call.running_mean is not None:
            call.running_mean.lerp_(found.mean.to(call.running_mean.dtype), call.momentum)
        if call.running_var is not None:
            call.running_var.lerp_((found.m2 / (found.count - 1)).to(call.running_var.dtype), call.momentum)


class _Normalize(torch.autograd.Function):
    """y = weight (x - mean) invstd + bias, whose mean and invstd are functions of all ranks' x.

    With n the global count, dy the gradient of y and c = x - mean:
      dx = weight invstd (dy - sum(dy) / n - c invstd^2 sum(dy c) / n)    sums over all ranks
      dweight = sum(dy c) invstd, dbias = sum(dy)                         sums of this rank
    (Ioffe and Szegedy 2015, section 3; in this form as in torch.batch_norm_backward_reduce.) Sums are in float64.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], mean: Tensor, invstd: Tensor,
                count: int, exchange: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.count, ctx.exchange = count, exchange
        scale = invstd if weight is None else invstd * weight.double()
        output = torch.empty_like(x)
        for images, chosen in pieces(x):
            part = _centred(x[images, chosen], mean[chosen])
            part.mul_(_over(part, scale[chosen]))
            output[images, chosen] = part if bias is None else part.add_(_over(part, bias[chosen]))
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, *gradients: Tensor) -> Tuple[Optional[Tensor], ...]:
        (dy,) = gradients
        x, weight, mean, invstd = ctx.saved_tensors
        own = _sums(x, dy, mean)
        channels = x.shape[1]
        dx = None
        if ctx.needs_input_grad[0]:
            total = torch.zeros_like(own)
            for sums in ctx.exchange(own):  # in the order of the ranks
                total = total + sums
            share = total / max(ctx.count, 1)
            scale = invstd if weight is None else invstd * weight.double()
            dx = _input_gradient(x, dy, mean, scale, share[:channels], invstd.square() * share[channels:])
        dweight = (own[channels:] * invstd).to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        dbias = own[:channels].to(x.dtype if weight is None else weight.dtype) if ctx.needs_input_grad[2] else None
        return dx, dweight, dbias, None, None, None, None


def _sums(x: Tensor, dy: Tensor, mean: Tensor) -> Tensor:
    """[2 C] of float64: the sum of dy, and that of dy (x - mean)."""
    channels = x.shape[1]
    sums = torch.zeros(2 * channels, dtype=torch.float64, device=x.device)
    for images, chosen in pieces(x):
        centred = _centred(x[images, chosen], mean[chosen])
        part = dy[images, chosen].to(centred.dtype)
        dims = dims_of_values(part)
        sums[:channels][chosen] += part.sum(dims, dtype=torch.float64)
        sums[channels:][chosen] += centred.mul_(part).sum(dims, dtype=torch.float64)
    return sums


def _input_gradient(x: Tensor, dy: Tensor, mean: Tensor, scale: Tensor, of_mean: Tensor, of_variance: Tensor) -> Tensor:
    """scale (dy - of_mean - (x - mean) of_variance)."""
    dx = torch.empty_like(x)
    for images, chosen in pieces(x):
        part = _centred(x[images, chosen], mean[chosen])
        part.mul_(_over(part, -of_variance[chosen])).add_(dy[images, chosen])
        dx[images, chosen] = part.sub_(_over(part, of_mean[chosen])).mul_(_over(part, scale[chosen]))
    return dx


def _precision(x: Tensor) -> torch.dtype:
    """What is computed in: half precision is not enough."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _over(x: Tensor, of_channels: Tensor) -> Tensor:
    return of_channels.to(_precision(x)).view(shape_of_channels(x))


def _centred(x: Tensor, mean: Tensor) -> Tensor:
    return x.to(_precision(x)) - _over(x, mean)
