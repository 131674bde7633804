"""BatchNorm over the batches of all ranks, and over slices of one batch, in the place of other BatchNorm layers."""
from dataclasses import replace
from typing import Any, Dict, Optional, Tuple, Type

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import LockstepError
from .calls import BatchNormCall, BatchNormCalls, uncompiled
from .groups import Group
from .process_group import AnyGroup, group_of
from .synchronized import synchronized


class BatchNormNd(_BatchNorm):
    """torch.nn.BatchNorm of (N, C), (N, C, L), (N, C, H, W) or (N, C, D, H, W): what revert() makes of a
    torch.nn.SyncBatchNorm, which does not know what it was."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected an input (N, C, ...), got {list(input.shape)}")


class ReplacingBatchNorm(BatchNormNd):
    """A BatchNorm that stands in for another, and computes what that does, but for its calls of functional.batch_norm in
    training. `replaced`: what revert() makes of it."""

    replaced: Type[_BatchNorm] = BatchNormNd
    name = ""

    @property
    def label(self) -> str:
        """The layer in messages."""
        return self.name or f"a {type(self).__name__} of {self.num_features} channels"

    def forward(self, input: Tensor, *others: Any, **named: Any) -> Tensor:
        """As the layer that it stands in for. Raises LockstepError where that has no such call in training."""
        output: Tensor = (self._forward if self.answers else super().forward)(input, *others, **named)
        return output

    @uncompiled
    def _forward(self, input: Tensor, *others: Any, **named: Any) -> Tensor:
        with BatchNormCalls(self._answer) as calls:
            output: Tensor = super().forward(input, *others, **named)
        if calls.count == 0:
            raise LockstepError(f"{self.label} is a {self.replaced.__name__}, whose forward does not call "
                                f"torch.nn.functional.batch_norm: its statistics are out of reach. Leave it out: convert the "
                                f"other parts of the model, each by itself")
        return output

    @property
    def answers(self) -> bool:
        """Whether it takes the place of another now: in training."""
        return self.training

    def normalised(self, call: BatchNormCall) -> Tensor:
        """The answer to a call."""
        raise NotImplementedError

    def _answer(self, call: BatchNormCall) -> Tensor:
        return self.normalised(call) if call.training or not self.training else call.plain()


class SyncBatchNorm(ReplacingBatchNorm):
    """BatchNorm by the statistics of all ranks of a group (Ioffe and Szegedy 2015), on CPUs and GPUs.

    Input and output: [N, C, ...]. N may differ from rank to rank, and may be 0 on some. Every rank's statistics travel as
    (count, mean, M2) in float64 and are merged in the order of the ranks, so that all ranks have the same bits. Running
    variance takes the unbiased variance of the global count. Gradients of weight and bias are this rank's sums, as those of
    torch.nn.SyncBatchNorm: add them over ranks, or take their mean as DistributedDataParallel does. In evaluation ranks do
    not meet.

    eps_mode: "add" normalises by 1/sqrt(var + eps), "clamp" by 1/sqrt(max(var, eps)), in evaluation, too.
    group or process_group: the ranks, a Group or a group of torch.distributed; None: all processes of torch.distributed, which are
    looked for when it first trains. `Group()` is one rank alone. name: of the layer, in messages.
    Raises ValueError on all ranks where they have one value per channel together, and GroupError (see Group).
    """

    eps_mode = "add"  # of layers out of older files

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: Optional[float] = 0.1, affine: bool = True,
                 track_running_stats: bool = True, process_group: AnyGroup = None, device: Any = None, dtype: Any = None,
                 *, group: AnyGroup = None, name: str = "", eps_mode: str = "add", bias: bool = True):
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        if not bias:  # older PyTorch has no such argument
            self.register_parameter("bias", None)
        self.eps_mode = expect_eps_mode(eps_mode)
        self.group: Group = group_of(process_group if group is None else group)
        self.name = name

    @property
    def process_group(self) -> Any:
        """The group of torch.distributed; None where it is that of all processes, or none. It may be set."""
        return getattr(self.group, "process_group", None)

    @process_group.setter
    def process_group(self, group: AnyGroup) -> None:
        self.group = group_of(group)

    @property
    def answers(self) -> bool:
        """In training; where eps is clamped, always."""
        return self.training or self.eps_mode == "clamp"

    def normalised(self, call: BatchNormCall) -> Tensor:
        """See ReplacingBatchNorm."""
        if call.training:
            return synchronized(call, self.group if self.training else Group(), self.label, self.eps_mode == "clamp")
        assert call.running_var is not None
        return replace(call, running_var=call.running_var.clamp_min(call.eps), eps=0.0).plain()


def expect_eps_mode(eps_mode: str) -> str:
    """It. Raises ValueError for what is none."""
    if eps_mode not in ("add", "clamp"):
        raise ValueError(f"expected eps_mode=\"add\" or \"clamp\", got {eps_mode!r}")
    return eps_mode


class GhostBatchNorm(ReplacingBatchNorm):
    """Ghost BatchNorm (Hoffer et al. 2017): each of `slices` parts of the batch, as torch.chunk cuts it, is normalised by
    itself. The first slice feeds the running statistics, as device 0 does in DataParallel and in the program. So it computes
    on one device what per-device BatchNorm computes on as many devices as there are slices, in networks whose layers see the
    images of the batch in its order, one row each.

    Raises ValueError where a slice has one value per channel.
    """

    slices = 1

    def normalised(self, call: BatchNormCall) -> Tensor:
        """See ReplacingBatchNorm."""
        first, *others = call.input.chunk(self.slices)
        untracked = replace(call, running_mean=None, running_var=None, momentum=0.0)
        try:
            parts = [replace(call, input=first).plain(), *(replace(untracked, input=part).plain() for part in others)]
        except ValueError as error:
            raise ValueError(f"{self.label}: {self.slices} slices of {list(call.input.shape)}: {error}; use fewer slices"
                             ) from error
        return torch.cat(parts) if others else parts[0]


class OwnStatistics(ReplacingBatchNorm):
    """Each image is normalised by its own mean and variance, in training and in evaluation, and running statistics stay as they
    are. Where an image has one value per channel, which has no variance, running statistics normalise."""

    def forward(self, input: Tensor, *others: Any, **named: Any) -> Tensor:
        """See ReplacingBatchNorm."""
        if self.replaced in PLAIN:  # without a mode of PyTorch's functions, for those that trace or export it
            self._check_input_dim(input)
            return self.normalised(BatchNormCall(input, None, None, self.weight, self.bias, eps=self.eps))
        return super().forward(input, *others, **named)

    @property
    def answers(self) -> bool:
        """Always."""
        return True

    def normalised(self, call: BatchNormCall) -> Tensor:
        """See ReplacingBatchNorm."""
        if any(length > 1 for length in call.input.shape[2:]) and len(call.input):
            return functional.instance_norm(call.input, None, None, call.weight, call.bias, True, 0.0, call.eps)
        if self.running_mean is None or self.running_var is None:
            raise LockstepError(f"{self.label} sees one value per channel of an image, which has no variance, and has no running "
                                f"statistics to take in its place")
        return functional.batch_norm(call.input, self.running_mean, self.running_var, call.weight, call.bias, False, 0.0, call.eps)


PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, BatchNormNd)


_made: Dict[Tuple[type, type], Type[_BatchNorm]] = {}


def kind_of(role: Type[BatchNormNd], old: Type[_BatchNorm]) -> Type[_BatchNorm]:
    """`role` for layers of the class `old`. It is also of that class, for who looks for it, and keeps its forward and all it has;
    but torch.nn.SyncBatchNorm's, which asks for ranks itself, is replaced."""
    if old in (nn.SyncBatchNorm, BatchNormNd):
        return role
    if (role, old) not in _made:
        _made[role, old] = _both(role, old)
    return _made[role, old]


def _both(role: Type[BatchNormNd], old: Type[_BatchNorm]) -> Type[_BatchNorm]:
    inner = (_WithoutRanks,) if issubclass(old, nn.SyncBatchNorm) else ()

    def by_parts(self: Any, protocol: Any) -> Tuple[Any, ...]:  # no module has the class that is made here
        return _empty, (role, old), object.__reduce_ex__(self, 2)[2]

    name = role.__name__ if old in PLAIN else f"{role.__name__}Of{old.__name__}"
    # torch.fx looks into no module of torch.nn.
    return type(name, (role, old, *inner), {"__module__": nn.BatchNorm2d.__module__, "__reduce_ex__": by_parts,
                                            "_check_input_dim": old._check_input_dim})


class _WithoutRanks(nn.SyncBatchNorm):
    """What the forward of a subclass of torch.nn.SyncBatchNorm finds in that one's place."""

    def forward(self, input: Tensor) -> Tensor:
        return _BatchNorm.forward(self, input)


def _empty(role: Type[BatchNormNd], old: Type[_BatchNorm]) -> _BatchNorm:
    """A layer that copies and files are put into."""
    kind = kind_of(role, old)
    layer: _BatchNorm = kind.__new__(kind)
    return layer
