"""Forward passes of a network whose BatchNorm layers normalise as a training or an evaluation would, and tell what they saw."""
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import LockstepError
from ..table import Array
from .batch_norm import OwnStatistics, ReplacingBatchNorm
from .batches import class_labels
from .calls import BatchNormCall, BatchNormCalls
from .noise import ImageMoments

_IGNORED = 255  # a label that does not count, as data.ignore_index of the program

Loss = Callable[[Any, Any], Tensor]
Running = Mapping[str, Tuple[Array, Array]]
Calls = List[Tuple[str, float, ImageMoments]]  # name, eps and statistics by image of each call of a BatchNorm layer, in order


@dataclass
class Pass:
    """What came of images that went forward, some at a time."""
    logits: Array  # float32 [images, classes, ...]
    loss: float  # mean over labels; nan without labels
    calls: Calls


class Network:
    """A model under the lens, and the images that it sees: in evaluation, but for the BatchNorm layers that take statistics in
    training."""

    def __init__(self, model: nn.Module, images: Tensor, labels: Optional[Tensor], loss: Optional[Loss],
                 output: Optional[Callable[[Any], Tensor]], ignored: Optional[int]):
        self.model = model
        self.images = images
        self.labels = labels
        self.loss = loss
        self.output = output or logits_of
        self.ignored = ignored
        model.train()  # a model may keep layers frozen, by a train() of its own
        self.layers = {name: module for name, module in model.named_modules()
                       if isinstance(module, _BatchNorm) and module.training and not isinstance(module, OwnStatistics)}
        model.eval()

    def running(self) -> Running:
        """The running statistics that the layers have; those without any are left out."""
        return {name: (layer.running_mean.double().cpu().numpy(), layer.running_var.double().cpu().numpy())
                for name, layer in self.layers.items() if layer.running_mean is not None and layer.running_var is not None}

    @torch.no_grad()
    def forward(self, together: int, running: Optional[Running] = None) -> Pass:
        """`together` images at a time. A layer that `running` has normalises by these statistics, any other by those of the
        images. Images at the end that are fewer are left out."""
        logits: List[Array] = []
        sets: List[Calls] = []
        total, weight = 0.0, 0.0
        for first in range(0, len(self.images) // together * together, together):
            with _observed(self.layers, running, together) as seen:
                output = self.output(self.model(self.images[first:first + together]))
            sets.append(seen)
            logits.append(output.float().cpu().numpy())
            if self.labels is not None:
                of_set, counted = self._loss(output, self.labels[first:first + together])
                total, weight = total + of_set, weight + counted
        return Pass(np.concatenate(logits), total / weight if weight else float("nan"), _joined(sets))

    def _loss(self, output: Tensor, labels: Any) -> Tuple[float, float]:
        """A sum and what it is to be divided by: labels, or with a loss of the user's own images."""
        if self.loss is not None:
            return float(self.loss(output, labels)) * len(labels), float(len(labels))
        no_class = _IGNORED if output.shape[1] <= _IGNORED else -1
        ignored = no_class if self.ignored is None else self.ignored
        classes = class_labels(labels, output, ignored)
        counts = classes != ignored
        if output.shape[1] == 1:
            summed = functional.binary_cross_entropy_with_logits(output.double()[:, 0][counts], classes[counts].double(),
                                                                 reduction="sum")
        else:
            summed = functional.cross_entropy(output.double(), classes, ignore_index=ignored, reduction="sum")
        return float(summed), float(counts.sum())


def logits_of(output: Any) -> Tensor:
    """Of what networks return: a tensor, a dictionary with "out" (torchvision), something with .logits (transformers), or the first.
    Raises LockstepError for what has none."""
    if isinstance(output, Mapping) and "out" in output:
        output = output["out"]
    elif hasattr(output, "logits"):
        output = output.logits
    elif isinstance(output, (tuple, list)) and output:
        output = output[0]
    if isinstance(output, Tensor) and output.dim() >= 2:
        return output
    raise LockstepError(f"expected logits [images, classes, ...] from the model, got {type(output).__name__}; let it return "
                        f"them, or name them by lens(..., output=lambda returned: ...)")


@contextmanager
def _observed(layers: Dict[str, _BatchNorm], running: Optional[Running], images: int) -> Iterator[Calls]:
    """While it lasts, these layers normalise as said, and leave their running statistics alone."""
    seen: Calls = []

    def forward_of(name: str, layer: _BatchNorm) -> Callable[..., Tensor]:
        whole: Callable[..., Tensor] = layer.forward
        normalised: Callable[[BatchNormCall], Tensor] = BatchNormCall.plain
        if isinstance(layer, ReplacingBatchNorm) and layer.answers:  # also in evaluation: it has an eps mode of its own
            whole, normalised = super(ReplacingBatchNorm, layer).forward, layer.normalised

        def answer(call: BatchNormCall) -> Tensor:
            x = call.input
            if running is not None and name in running:
                # As the layer has them: under autocast the activation is of half precision, and the layer is not.
                own = next((each for each in (call.running_mean, call.weight) if each is not None), x)
                mean, var = (torch.from_numpy(each).to(own) for each in running[name])
                return normalised(replace(call, running_mean=mean, running_var=var, training=False))
            if len(x) != images:
                raise LockstepError(f"{name or 'the model'} sees {len(x)} rows of {images} images: the lens takes a row for an "
                                    f"image, and cannot tell which rows are those of one")
            seen.append((name, call.eps, moments_by_image(x)))
            return normalised(replace(call, running_mean=None, running_var=None, training=True, momentum=0.0))

        def forward(*inputs: Any, **named: Any) -> Tensor:
            with BatchNormCalls(answer) as calls:
                output: Tensor = whole(*inputs, **named)
            if calls.count == 0:
                raise LockstepError(f"{name or 'the model'} is a {type(layer).__name__}, whose forward does not call "
                                    f"torch.nn.functional.batch_norm: the lens cannot see its statistics")
            return output
        return forward

    own = {name: layer.__dict__.get("forward") for name, layer in layers.items()}  # of somebody else who does the same
    for name, layer in layers.items():
        # An instance's forward goes before that of its class, and the module keeps its type.
        setattr(layer, "forward", forward_of(name, layer))
    try:
        yield seen
    finally:
        for name, layer in layers.items():
            if own[name] is None:
                delattr(layer, "forward")
            else:
                setattr(layer, "forward", own[name])


def moments_by_image(x: Tensor) -> ImageMoments:
    """Of [N, C, ...]. One image at a time, in float64: the whole would take twice the activations' memory once more."""
    means, m2s = [], []
    for image in x:
        values = image.double().reshape(len(image), -1)
        mean = values.mean(1, keepdim=True)
        means.append(mean.squeeze(1))
        m2s.append((values - mean).square().sum(1))
    count = x[0].numel() // x.shape[1]
    return ImageMoments(count, torch.stack(means).cpu().numpy(), torch.stack(m2s).cpu().numpy())


def _joined(sets: List[Calls]) -> Calls:
    """The same calls of all sets of images as one. Raises LockstepError where they differ: then there is nothing to compare."""
    first, *others = ([(name, each.count) for name, _, each in calls] for calls in sets)
    if any(other != first for other in others):
        raise LockstepError("the model called other BatchNorm layers, or sizes, for some images than for others; the "
                            "lens compares calls that all images have in common")
    return [(name, eps, ImageMoments(moments.count, np.concatenate([calls[at][2].mean for calls in sets]),
                                     np.concatenate([calls[at][2].m2 for calls in sets])))
            for at, (name, eps, moments) in enumerate(sets[0])]
