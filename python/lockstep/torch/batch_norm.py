"""BatchNorm over the batches of all ranks, and over slices of one batch."""
from typing import Any, Callable, Optional, Tuple, Type

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from .groups import Call, Group
from .moments import dims_of_values, local_moments, merge_moments, shape_of_channels


class BatchNormNd(_BatchNorm):
    """torch.nn.BatchNorm of (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W): what revert() makes of a
    torch.nn.SyncBatchNorm, which does not know what it was."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input (N, C, ...), got {list(input.shape)}")


class ReplacingBatchNorm(BatchNormNd):
    """A BatchNorm that stands in for another. `replaced`: what revert() makes of it."""

    replaced: Type[_BatchNorm] = BatchNormNd
    name = ""

    @property
    def label(self) -> str:
        """The layer in messages."""
        return self.name or f"a {type(self).__name__} of {self.num_features} channels"


class SyncBatchNorm(ReplacingBatchNorm):
    """BatchNorm by the statistics of all ranks of a group (Ioffe and Szegedy 2015), on CPUs and GPUs.

    Input and output: [N, C, ...]. N may differ from rank to rank, and may be 0 on some. Every rank's statistics travel as
    (count, mean, M2) in float64 and are merged in the order of the ranks, so that all ranks have the same bits. Running
    variance takes the unbiased variance of the global count. Gradients of weight and bias are this rank's sums, as those of
    torch.nn.SyncBatchNorm: add them over ranks, or take their mean as DistributedDataParallel does. In evaluation ranks do
    not meet.

    group: the ranks; None: this one alone. name: of the layer, in messages.
    Raises ValueError on all ranks where they have one value per channel together, and GroupError (see Group).
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: Optional[float] = 0.1, affine: bool = True,
                 track_running_stats: bool = True, group: Optional[Group] = None, name: str = ""):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.group = group or Group()
        self.name = name

    def forward(self, input: Tensor) -> Tensor:
        """Normalises `input` [N, C, ...]."""
        self._check_input_dim(input)
        if not self.training:
            return super().forward(input)
        packed = local_moments(input)
        count, mean, m2 = merge_moments(self.group.all_show(Call(self.label, "forward", packed.numel()), packed))
        if count == 1:
            raise ValueError(f"{self.label}: batch statistics need more than one value per channel, and all ranks together "
                             f"have 1; use a larger batch or images")
        if count > 0:
            self._track(count, mean, m2)
        invstd = (m2 / max(count, 1) + self.eps).rsqrt()

        def exchange(sums: Tensor) -> Tensor:
            return self.group.all_show(Call(self.label, "backward", sums.numel()), sums)

        output: Tensor = _Normalize.apply(input, self.weight, self.bias, mean, invstd, count, exchange)
        return output

    def _track(self, count: int, mean: Tensor, m2: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_((m2 / (count - 1)).to(self.running_var.dtype), share)


class _Normalize(torch.autograd.Function):
    """y = weight (x - mean) invstd + bias, whose mean and invstd are functions of all ranks' x.

    With n the global count, dy the gradient of y and c = x - mean:
      dx = weight invstd (dy - sum(dy) / n - c invstd^2 sum(dy c) / n)    sums over all ranks
      dweight = sum(dy c) invstd, dbias = sum(dy)                         sums of this rank
    (Ioffe and Szegedy 2015, section 3; in this form as in torch.batch_norm_backward_reduce.)
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], mean: Tensor, invstd: Tensor,
                count: int, exchange: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.count, ctx.exchange = count, exchange
        scale = invstd if weight is None else invstd * weight.double()
        output = _centred(x, mean) * _over(x, scale)
        if bias is not None:
            output = output + _over(x, bias)
        return output.to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, *gradients: Tensor) -> Tuple[Optional[Tensor], ...]:
        (dy,) = gradients
        x, weight, mean, invstd = ctx.saved_tensors
        dy = dy.to(_precision(x))
        centred = _centred(x, mean)
        channels = x.shape[1]
        own = torch.cat([dy.double().sum(dims_of_values(x)), (dy * centred).double().sum(dims_of_values(x))])
        dx = None
        if ctx.needs_input_grad[0]:
            total = torch.zeros_like(own)
            for sums in ctx.exchange(own):  # in the order of the ranks
                total = total + sums
            share = total / max(ctx.count, 1)
            scale = invstd if weight is None else invstd * weight.double()
            dx = dy - _over(x, share[:channels]) - centred * _over(x, invstd.square() * share[channels:])
            dx = (dx * _over(x, scale)).to(x.dtype)
        dweight = (own[channels:] * invstd).to(weight.dtype) if weight is not None and ctx.needs_input_grad[1] else None
        dbias = own[:channels].to(x.dtype if weight is None else weight.dtype) if ctx.needs_input_grad[2] else None
        return dx, dweight, dbias, None, None, None, None


class GhostBatchNorm(ReplacingBatchNorm):
    """Ghost BatchNorm (Hoffer et al. 2017): each of `slices` parts of the batch, as torch.chunk cuts it, is normalised by
    itself. The first slice feeds the running statistics, as device 0 does in DataParallel and in the program. So it computes
    on one device what per-device BatchNorm computes on as many devices as there are slices.

    Raises ValueError where a slice has one value per channel.
    """

    slices = 1

    def forward(self, input: Tensor) -> Tensor:
        """Normalises `input` [N, C, ...]."""
        self._check_input_dim(input)
        if not self.training:
            return super().forward(input)
        first, *others = input.chunk(self.slices)
        try:
            return torch.cat([super().forward(first),
                              *(functional.batch_norm(part, None, None, self.weight, self.bias, True, 0.0, self.eps)
                                for part in others)])
        except ValueError as error:
            raise ValueError(f"{self.label}: {self.slices} slices of {list(input.shape)}: {error}; use fewer slices") from error


def _precision(x: Tensor) -> torch.dtype:
    """What is computed in: half precision is not enough."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _over(x: Tensor, of_channels: Tensor) -> Tensor:
    return of_channels.to(_precision(x)).view(shape_of_channels(x))


def _centred(x: Tensor, mean: Tensor) -> Tensor:
    return x.to(_precision(x)) - _over(x, mean)
