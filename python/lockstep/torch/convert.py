"""Networks whose BatchNorm layers are exchanged for others, and back. Parameters and buffers stay the same tensors, so that
optimizers and state dicts go on to fit."""
from typing import Any, Callable, Dict, Type

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from ..errors import LockstepError
from .batch_norm import BatchNormNd, GhostBatchNorm, OwnStatistics, ReplacingBatchNorm, SyncBatchNorm, expect_eps_mode, kind_of
from .process_group import AnyGroup, Processes, group_of

_Replace = Callable[[str, _BatchNorm], _BatchNorm]
_OWN = ("name", "replaced", "group", "slices", "eps_mode")  # what layers of this package have beside those that they replace


def convert(model: nn.Module, group: AnyGroup = None, eps_mode: str = "add") -> nn.Module:
    """`model` with every BatchNorm synchronized over `group`, changed in place; another module is returned only where the
    model itself is a BatchNorm layer.

    group: `ThreadGroup.member(rank)`, a ProcessGroup, or a group of torch.distributed; None: all processes of
    torch.distributed, which are looked for in the first training step where there are none yet. `Group()` is one rank alone.
    eps_mode: "add", or "clamp" for 1/sqrt(max(var, eps)).
    Layers are named as in named_modules(). torch.nn.SyncBatchNorm is exchanged, too, and keeps its process_group where no
    group is given. A BatchNorm with a forward of its own (timm's BatchNormAct2d) keeps it.

    Raises LockstepError for a layer that cannot be exchanged, and names it.
    """
    ranks = group_of(group)
    if group is None and Processes().can_be_found:
        Processes().found()  # all ranks are here

    def synchronized(name: str, old: _BatchNorm) -> _BatchNorm:
        own = getattr(old, "process_group", None) if isinstance(old, nn.SyncBatchNorm) and group is None else None
        return _replacing(name, old, SyncBatchNorm, group=ranks if own is None else group_of(own), eps_mode=expect_eps_mode(eps_mode))

    return _replace(model, synchronized)


def ghost(model: nn.Module, slices: int) -> nn.Module:
    """`model` with every BatchNorm cutting its batch into `slices` (GhostBatchNorm), changed as by convert()."""
    if slices < 1:
        raise ValueError(f"expected at least one slice, got {slices}")
    return _replace(model, lambda name, old: _replacing(name, old, GhostBatchNorm, slices=slices))


def own_statistics(model: nn.Module) -> nn.Module:
    """`model` with every BatchNorm normalising each image by its own statistics (OwnStatistics), changed as by convert(). So a
    network that was trained with one image per device is evaluated as it was trained. revert() undoes it."""
    return _replace(model, lambda name, old: _replacing(name, old, OwnStatistics))


def revert(model: nn.Module) -> nn.Module:
    """`model` with BatchNorm layers as they were before convert() or ghost(), changed in place.

    A torch.nn.SyncBatchNorm, which does not know what it was, becomes a BatchNormNd. So the model runs on one CPU.
    """
    def plain(name: str, old: _BatchNorm) -> _BatchNorm:
        kind = _replaced(old)
        if issubclass(kind, nn.SyncBatchNorm) and not issubclass(kind, BatchNormNd):
            kind = kind_of(BatchNormNd, kind)
        return old if kind is type(old) else _remade(old, kind)

    return _replace(model, plain)


def _replacing(name: str, old: _BatchNorm, role: Type[ReplacingBatchNorm], **own: Any) -> _BatchNorm:
    """A layer of that role in the place of `old`."""
    _expect_replaceable(name, old)
    kind = _replaced(old)
    return _remade(old, kind_of(role, kind), name=name, replaced=kind, **own)


def _replaced(old: _BatchNorm) -> Type[_BatchNorm]:
    return old.replaced if isinstance(old, ReplacingBatchNorm) else type(old)


def _remade(old: _BatchNorm, kind: Type[_BatchNorm], **own: Any) -> _BatchNorm:
    """All that `old` has, its tensors and hooks, too, as a layer of `kind`; with what this package's layers have, if given."""
    new: _BatchNorm = kind.__new__(kind)
    new.__dict__.update(old.__dict__)
    if isinstance(old, ReplacingBatchNorm):
        for name in _OWN:
            new.__dict__.pop(name, None)
    new.__dict__.update(own)
    return new


def _expect_replaceable(name: str, old: _BatchNorm) -> None:
    layer = f"{name or 'the model'}, a {type(old).__name__},"
    if isinstance(old, LazyModuleMixin) and old.has_uninitialized_params():
        raise LockstepError(f"{layer} does not know its channels yet: let the model see one batch first")
    if "forward" in old.__dict__:
        raise LockstepError(f"{layer} has a forward that was put into this one layer, which an exchange would lose: take it out "
                            f"first, or write a subclass")
    taken = [each for each in _OWN if each in old.__dict__]
    if taken and not isinstance(old, ReplacingBatchNorm):
        raise LockstepError(f"{layer} has {taken[0]!r} of its own, which the layers of this package need for themselves: give it "
                            f"another name in that class")


def _replace(model: nn.Module, replace: _Replace) -> nn.Module:
    new: Dict[nn.Module, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            new[module] = replace(name, module)
    for parent in list(model.modules()):
        for child_name, child in list(parent._modules.items()):  # also a second name of the same layer
            if child is not None and child in new:
                parent._modules[child_name] = new[child]
    return new.get(model, model)
