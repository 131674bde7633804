"""Lockstep for networks that one has in PyTorch: the lens, and BatchNorm layers to try. Pure PyTorch, 1.13 or later.

    import lockstep.torch
    print(lockstep.torch.lens(model, loader))                  # which norm does this network need?
    model = lockstep.torch.convert(model)                      # SyncBatchNorm over all processes, also on CPUs
    model = lockstep.torch.ghost(model, slices=4)              # as four devices without synchronization would compute it
    model = lockstep.torch.own_statistics(model)               # each image by its own mean and variance
    model = lockstep.torch.revert(model)                       # plain BatchNorm again
    comparison = lockstep.torch.compare(train, ...)            # does it matter in my training?
"""
try:
    import torch as _torch  # noqa: F401
except ImportError:
    from ..errors import missing as _missing
    raise _missing("torch", "lockstep.torch") from None

from .batch_norm import BatchNormNd, GhostBatchNorm, OwnStatistics, SyncBatchNorm
from .compare import compare, evaluate
from .convert import convert, ghost, own_statistics, revert
from .data_parallel import DataParallel
from .diagnosis import Diagnosis, ImagesDiagnosis
from .groups import Group, GroupError, ThreadGroup, ThreadMember
from .lens import lens
from .noise import LayerNoise
from .process_group import ProcessGroup
from .trial import Trial
from .watch import Watch, WatchCallback

__all__ = ["BatchNormNd", "DataParallel", "Diagnosis", "GhostBatchNorm", "Group", "GroupError", "ImagesDiagnosis", "LayerNoise", "OwnStatistics",
           "ProcessGroup", "SyncBatchNorm", "ThreadGroup", "ThreadMember", "Trial", "Watch", "WatchCallback", "compare", "convert", "evaluate",
           "ghost", "lens", "own_statistics", "revert"]
