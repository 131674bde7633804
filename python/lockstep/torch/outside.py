"""Statistics of several images that a network takes where the lens does not look: outside of BatchNorm layers."""
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Iterator, List

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import LockstepError
from .calls import BatchNormCall, BatchNormCalls
from .hooks import modes_kept


def expect_modules_of_python(model: nn.Module) -> None:
    """Raises LockstepError for TorchScript, in which BatchNorm layers are no modules that Python knows."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise LockstepError(f"{name or 'the model'} is TorchScript, whose layers cannot be looked into: give the model as it "
                                f"was before torch.jit.script or torch.jit.trace")


def expect_nothing_outside(model: nn.Module, images: Tensor) -> None:
    """Raises LockstepError where functional.batch_norm shares statistics of `images`, and no BatchNorm layer calls it.

    A network in evaluation goes forward once. Only where it calls functional.batch_norm by itself, it goes forward in training,
    too; its buffers and PyTorch's random numbers are put back.
    """
    with _stray_calls(model) as stray, torch.no_grad():
        model(images)
        if stray and not _shared(stray, images):
            _go_forward_in_training(model, images)
    shared = _shared(stray, images)
    if shared:
        raise LockstepError(f"the model calls torch.nn.functional.batch_norm by itself, of {list(shared[0].input.shape)}, in "
                            f"training by statistics of several images: the lens sees those of layers alone. Make it a "
                            f"torch.nn.BatchNorm2d")


def _shared(calls: List[BatchNormCall], images: Tensor) -> List[BatchNormCall]:
    """Those by statistics of several images. Of one that stands for all the statistics are not shared: weights that are
    standardised, and norms by image, are written like that."""
    return [call for call in calls if call.training and len(call.input) == len(images)]


@contextmanager
def _stray_calls(model: nn.Module) -> Iterator[List[BatchNormCall]]:
    """While it lasts, the calls of functional.batch_norm that no BatchNorm layer makes. Nothing is tracked."""
    stray: List[BatchNormCall] = []
    inside: List[nn.Module] = []

    def enter(layer: nn.Module, *_: Any) -> None:
        inside.append(layer)

    def leave(*_: Any) -> None:
        inside.pop()

    def answer(call: BatchNormCall) -> Tensor:
        if not inside:
            stray.append(call)
        return (replace(call, running_mean=None, running_var=None, momentum=0.0) if call.training else call).plain()

    with ExitStack() as hooks, BatchNormCalls(answer):
        for layer in model.modules():
            if isinstance(layer, _BatchNorm):
                hooks.callback(layer.register_forward_pre_hook(enter).remove)
                hooks.callback(layer.register_forward_hook(leave).remove)
        yield stray


def _go_forward_in_training(model: nn.Module, images: Tensor) -> None:
    buffers = [(each, each.clone()) for each in model.buffers()]
    with modes_kept(model), torch.random.fork_rng([images.device] if images.device.type == "cuda" else []):
        model.train()
        for layer in model.modules():  # what they do is known
            if isinstance(layer, _BatchNorm):
                layer.eval()
        try:
            model(images)
        finally:
            for buffer, kept in buffers:
                buffer.copy_(kept)
