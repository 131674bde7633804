"""Statistics of several images that a network takes where the lens does not look: outside of BatchNorm layers."""
from typing import Any, List

import torch
from torch import Tensor, nn
from torch.nn import functional
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
    with _Calls(model) as found, torch.no_grad():
        model(images)
        if found.stray and not found.shared(len(images)):
            _go_forward_in_training(model, images)
    shared = found.shared(len(images))
    if shared:
        raise LockstepError(f"the model calls torch.nn.functional.batch_norm by itself, of {list(shared[0].input.shape)}, in "
                            f"training by statistics of several images: the lens sees those of layers alone. Make it a "
                            f"torch.nn.BatchNorm2d")


class _Calls:
    """While it lasts it sees the calls of functional.batch_norm that no BatchNorm layer makes. Nothing is tracked."""

    def __init__(self, model: nn.Module):
        self.layers = [each for each in model.modules() if isinstance(each, _BatchNorm)]
        self.stray: List[BatchNormCall] = []
        self._inside = 0
        self._mode = BatchNormCalls(self._answer)
        self._hooks: List[Any] = []

    def __enter__(self) -> "_Calls":
        self._hooks = [*(each.register_forward_pre_hook(self._enter_layer) for each in self.layers),
                       *(each.register_forward_hook(self._leave_layer) for each in self.layers)]
        self._mode.__enter__()  # type: ignore[no-untyped-call, unused-ignore]
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)  # type: ignore[no-untyped-call, unused-ignore]
        for hook in self._hooks:
            hook.remove()

    def _enter_layer(self, *_: Any) -> None:
        self._inside += 1

    def _leave_layer(self, *_: Any) -> None:
        self._inside -= 1

    def _answer(self, call: BatchNormCall) -> Tensor:
        if not self._inside:
            self.stray.append(call)
        if not call.training:
            return call.plain()
        return functional.batch_norm(call.input, None, None, call.weight, call.bias, True, 0.0, call.eps)

    def shared(self, images: int) -> List[BatchNormCall]:
        """Those by statistics of several images. Of one that stands for all the statistics are not shared: weights that are
        standardised, and norms by image, are written like that."""
        return [call for call in self.stray if call.training and call.input.shape[0] == images]


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
