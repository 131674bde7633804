"""Networks whose BatchNorm layers become others, and back. Layers, parameters and buffers stay the same objects, so that
optimizers, state dicts and whoever else has them go on to fit."""
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, Tuple, Type, TypeVar, overload

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized

from .._arguments import whole_number
from ..errors import LockstepError
from .batch_norm import BatchNormNd, GhostBatchNorm, OwnStatistics, ReplacingBatchNorm, SyncBatchNorm, expect_eps_mode, kind_of
from .process_group import AnyGroup, group_of

Model = TypeVar("Model", bound=nn.Module)
_Change = Tuple[Type[_BatchNorm], Dict[str, Any]]  # the class that a layer gets, and what it has beside what it had
_OWN = ("name", "replaced", "group", "slices", "eps_mode")  # what layers of this package have beside those that they replace


def convert(model: Model, group: AnyGroup = None, eps_mode: str = "add") -> Model:
    """`model`, changed in place, with every BatchNorm synchronized over `group`.

    group: `ThreadGroup.member(rank)`, a ProcessGroup, or a group of torch.distributed; None: all processes of
    torch.distributed, which are looked for in the first training step where there are none yet. `Group()` is one rank alone.
    eps_mode: "add", or "clamp" for 1/sqrt(max(var, eps)).
    Layers are named as in named_modules(). torch.nn.SyncBatchNorm is exchanged, too, and keeps its process_group where no
    group is given. A BatchNorm with a forward of its own (timm's BatchNormAct2d) keeps it.

    Raises LockstepError for a layer that cannot be exchanged, and names it.
    """
    ranks = group_of(group)

    def synchronized(name: str, old: _BatchNorm) -> _Change:
        own = getattr(old, "process_group", None) if isinstance(old, nn.SyncBatchNorm) and group is None else None
        return _taking(name, old, SyncBatchNorm, group=ranks if own is None else group_of(own), eps_mode=expect_eps_mode(eps_mode))

    return _change(model, synchronized)


def ghost(model: Model, slices: int) -> Model:
    """`model` with every BatchNorm cutting its batch into `slices` (GhostBatchNorm), changed as by convert()."""
    number = whole_number(slices, 1, "at least one slice")
    return _change(model, lambda name, old: _taking(name, old, GhostBatchNorm, slices=number))


def own_statistics(model: Model) -> Model:
    """`model` with every BatchNorm normalising each image by its own statistics (OwnStatistics), changed as by convert(). So a
    network that was trained with one image per device is evaluated as it was trained. revert() undoes it."""
    return _change(model, lambda name, old: _taking(name, old, OwnStatistics))


@overload
def revert(model: _BatchNorm) -> _BatchNorm: ...


@overload
def revert(model: Model) -> Model: ...


def revert(model: nn.Module) -> nn.Module:
    """`model` with BatchNorm layers as they were before convert() or ghost(), changed in place.

    A torch.nn.SyncBatchNorm, which does not know what it was, becomes a BatchNormNd. So the model runs on one CPU.
    """
    def plain(name: str, old: _BatchNorm) -> _Change:
        kind = _replaced(old)
        if isinstance(old, ReplacingBatchNorm):
            _expect_replaceable(name, old)
        if issubclass(kind, nn.SyncBatchNorm) and not issubclass(kind, BatchNormNd):
            kind = kind_of(BatchNormNd, kind)
        return kind, {}

    return _change(model, plain)


@contextmanager
def without_ranks(model: nn.Module) -> Iterator[None]:
    """While it lasts, layers that are torch.nn.SyncBatchNorm are plain ones, which run on any device."""
    kinds = {layer: type(layer) for layer in model.modules()
             if isinstance(layer, nn.SyncBatchNorm) and not isinstance(layer, BatchNormNd)}
    for layer, kind in kinds.items():
        layer.__class__ = kind_of(BatchNormNd, kind)  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer, kind in kinds.items():
            layer.__class__ = kind


def _taking(name: str, old: _BatchNorm, role: Type[ReplacingBatchNorm], **own: Any) -> _Change:
    """`old` in that role."""
    _expect_replaceable(name, old)
    kind = _replaced(old)
    return kind_of(role, kind), {"name": name, "replaced": kind, **own}


def _replaced(old: _BatchNorm) -> Type[_BatchNorm]:
    return old.replaced if isinstance(old, ReplacingBatchNorm) else type(old)


def _expect_replaceable(name: str, old: _BatchNorm) -> None:
    layer = f"{name or 'the model'}, a {type(old).__name__},"
    if isinstance(old, LazyModuleMixin) and old.has_uninitialized_params():
        raise LockstepError(f"{layer} does not know its channels yet: let the model see one batch first")
    if is_parametrized(old):
        raise LockstepError(f"{layer} has parametrizations, which are of its class: remove them first")
    if "forward" in old.__dict__:
        raise LockstepError(f"{layer} has a forward that was put into this one layer, which an exchange would lose: take it out "
                            f"first, or write a subclass")
    taken = [each for each in _OWN if each in old.__dict__]
    if taken and not isinstance(old, ReplacingBatchNorm):
        raise LockstepError(f"{layer} has {taken[0]!r} of its own, which the layers of this package need for themselves: give it "
                            f"another name in that class")


def _change(model: Model, change: Callable[[str, _BatchNorm], _Change]) -> Model:
    """All of the model's BatchNorm layers, or where one cannot be changed none."""
    changes = []
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and "BatchNorm" in getattr(module, "original_name", ""):
            raise LockstepError(f"{name or 'the model'} is TorchScript, whose layers cannot be changed: give the model as it was "
                                f"before torch.jit.script or torch.jit.trace")
        if isinstance(module, _BatchNorm):
            changes.append((module, *change(name, module)))
    for layer, kind, own in changes:
        if isinstance(layer, ReplacingBatchNorm):
            for each in _OWN:
                layer.__dict__.pop(each, None)
        layer.__dict__.update(own)
        layer.__class__ = kind
    return model
