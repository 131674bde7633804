"""functional.batch_norm by the statistics of all ranks."""
from types import ModuleType
from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor

from . import fused, pieces
from .calls import BatchNormCall
from .groups import Call, Group
from .moments import Moments, merge_moments


def synchronized(call: BatchNormCall, group: Group, label: str, clamped: bool = False) -> Tensor:
    """What `call` answers in training when all ranks of `group` share their statistics. `label`: the layer in messages. clamped:
    a variance below eps is eps, and nothing is added to any.

    Raises ValueError on all ranks where they have one value per channel together, and GroupError (see Group).
    """
    x = call.input.detach()
    _expect_fitting(call, label)
    packed = _passes(x).moments(x) if x.numel() else torch.zeros(1 + 2 * x.shape[1], dtype=torch.float64, device=x.device)
    found = merge_moments(group.all_show(Call(label, "forward", packed.numel()), packed))
    if found.count == 1:
        raise ValueError(f"{label}: batch statistics need more than one value per channel, and all ranks together have 1; use "
                         f"a larger batch or images")
    if found.count > 0:
        _track(call, found)

    def exchange(sums: Tensor) -> Tensor:
        return group.all_show(Call(label, "backward", sums.numel()), sums)

    var = found.m2 / max(found.count, 1)
    learns = (var >= call.eps).double() if clamped else torch.ones_like(var)
    normaliser = (found.mean, var.clamp_min(call.eps), 0.0) if clamped else (found.mean, var, call.eps)
    output: Tensor = _Normalize.apply(call.input, call.weight, call.bias, found.count, normaliser, learns, exchange)
    return output


def _expect_fitting(call: BatchNormCall, label: str) -> None:
    if not call.input.is_floating_point():
        raise ValueError(f"{label}: expected an input of floating-point numbers, got {call.input.dtype}")
    channels = call.input.shape[1]
    for each in (call.weight, call.bias, call.running_mean, call.running_var):
        if each is not None and len(each) != channels:
            raise ValueError(f"{label}: expected an input of {len(each)} channels, got {list(call.input.shape)}")


def _passes(x: Tensor) -> ModuleType:
    return fused if fused.fits(x) else pieces


def _track(call: BatchNormCall, found: Moments) -> None:
    with torch.no_grad():
        if call.running_mean is not None:
            _move(call.running_mean, found.mean, call.momentum)
        if call.running_var is not None:
            _move(call.running_var, found.m2 / (found.count - 1), call.momentum)


def _move(running: Tensor, value: Tensor, momentum: float) -> None:
    wide = running if running.dtype in (torch.float32, torch.float64) else running.float()  # half has no lerp before PyTorch 2
    running.copy_(wide.lerp(value.to(wide.dtype), momentum))


class _Normalize(torch.autograd.Function):
    """y = weight (x - mean) invstd + bias, whose mean and invstd are functions of all ranks' x.

    With n the global count, dy the gradient of y and c = x - mean:
      dx = weight invstd (dy - sum(dy) / n - c invstd^2 sum(dy c) / n)    sums over all ranks
      dweight = sum(dy c) invstd, dbias = sum(dy)                         sums of this rank
    (Ioffe and Szegedy 2015, section 3; in this form as in torch.batch_norm_backward_reduce.) Sums are in float64.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], count: int,
                normaliser: Tuple[Tensor, Tensor, float], learns: Tensor, exchange: Callable[[Tensor], Tensor]) -> Tensor:
        """`learns`: 1 for a channel whose invstd is a function of x, else 0."""
        mean, var, eps = normaliser
        ctx.save_for_backward(x, weight, mean, var, learns)
        ctx.count, ctx.eps, ctx.exchange = count, eps, exchange
        output: Tensor = _passes(x).normalised(x, mean, var, eps, weight, bias)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, *gradients: Tensor) -> Tuple[Optional[Tensor], ...]:
        (dy,) = gradients
        x, weight, mean, var, learns = ctx.saved_tensors
        channels = x.shape[1]
        invstd = (var + ctx.eps).rsqrt()
        own = _passes(x).gradient_sums(x, dy, mean, var, ctx.eps)
        dx = None
        if ctx.needs_input_grad[0]:
            total = torch.zeros_like(own)
            for sums in ctx.exchange(own):  # in the order of the ranks
                total = total + sums
            share = total / max(ctx.count, 1)
            scale = invstd if weight is None else invstd * weight.double()
            dx = _passes(x).input_gradient(x, dy, mean, scale, share[:channels],
                                           learns * invstd.square() * share[channels:])
        dweight = (own[channels:] * invstd).to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        dbias = own[:channels].to(x.dtype if weight is None else weight.dtype) if ctx.needs_input_grad[2] else None
        return dx, dweight, dbias, None, None, None, None
