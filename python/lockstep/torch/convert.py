"""Networks whose BatchNorm layers are exchanged for others, and back. Parameters and buffers stay the same tensors, so that
optimizers and state dicts go on to fit."""
from typing import Callable, Dict, Optional

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .batch_norm import BatchNormNd, GhostBatchNorm, ReplacingBatchNorm, SyncBatchNorm
from .groups import Group
from .process_group import ProcessGroup

_Replace = Callable[[str, _BatchNorm], _BatchNorm]


def convert(model: nn.Module, group: Optional[Group] = None) -> nn.Module:
    """`model` with every BatchNorm synchronized over `group`, changed in place; another module is returned only where the
    model itself is a BatchNorm layer.

    group: `ThreadGroup.member(rank)` or a ProcessGroup; None: all processes of torch.distributed where it is initialised,
    else one rank. Layers are named as in named_modules(), and torch.nn.SyncBatchNorm is exchanged, too.
    """
    if group is None:
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        group = ProcessGroup() if several else Group()
    ranks = group

    def synchronized(name: str, old: _BatchNorm) -> _BatchNorm:
        return _named(name, old, SyncBatchNorm(old.num_features, group=ranks))

    return _replace(model, synchronized)


def ghost(model: nn.Module, slices: int) -> nn.Module:
    """`model` with every BatchNorm cutting its batch into `slices` (GhostBatchNorm), changed as by convert()."""
    if slices < 1:
        raise ValueError(f"expected at least one slice, got {slices}")

    def sliced(name: str, old: _BatchNorm) -> _BatchNorm:
        new = GhostBatchNorm(old.num_features)
        new.slices = slices
        return _named(name, old, new)

    return _replace(model, sliced)


def revert(model: nn.Module) -> nn.Module:
    """`model` with BatchNorm layers as they were before convert() or ghost(), changed in place.

    A torch.nn.SyncBatchNorm, which does not know what it was, becomes a BatchNormNd. So the model runs on one CPU.
    """
    def plain(name: str, old: _BatchNorm) -> _BatchNorm:
        if isinstance(old, ReplacingBatchNorm):
            return _take_over(old, old.replaced(old.num_features))
        if isinstance(old, nn.SyncBatchNorm):
            return _take_over(old, BatchNormNd(old.num_features))
        return old

    return _replace(model, plain)


def _named(name: str, old: _BatchNorm, new: ReplacingBatchNorm) -> _BatchNorm:
    new.name = name
    if isinstance(old, ReplacingBatchNorm):
        new.replaced = old.replaced
    else:
        new.replaced = BatchNormNd if isinstance(old, nn.SyncBatchNorm) else type(old)
    return _take_over(old, new)


def _take_over(old: _BatchNorm, new: _BatchNorm) -> _BatchNorm:
    """Gives `new` all that `old` has."""
    new.eps, new.momentum, new.affine, new.track_running_stats = old.eps, old.momentum, old.affine, old.track_running_stats
    new.weight, new.bias = old.weight, old.bias
    new.running_mean, new.running_var = old.running_mean, old.running_var
    new.num_batches_tracked = old.num_batches_tracked
    new.training = old.training
    return new


def _replace(model: nn.Module, replace: _Replace) -> nn.Module:
    new: Dict[nn.Module, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            new[module] = replace(name, module)
    for parent in list(model.modules()):
        for child_name, child in list(parent._modules.items()):  # also a second name of the same layer
            if child is not None and child in new:
                setattr(parent, child_name, new[child])
    return new.get(model, model)
