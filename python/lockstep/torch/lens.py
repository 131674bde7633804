"""Which norm a network that one has in PyTorch needs, and how to evaluate it, by forward passes alone."""
from contextlib import ExitStack
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch import Tensor, nn

from .._arguments import Number, Numbers, image_counts, refused, whole_number
from ..errors import LockstepError
from ..table import Array
from .batches import Split, first_images
from .convert import without_ranks
from .diagnosis import Diagnosis, ImagesDiagnosis
from .hooks import modes_kept
from .noise import ORIGINS, judge, merge_neighbours, noise_of, settled_statistics
from .outside import expect_modules_of_python, expect_nothing_outside
from .passes import Loss, Network, Pass, Running

_IMAGES = 64


def lens(model: nn.Module, loader: Any, images_per_device: Numbers = (1, 2, 4), *,
         images: Optional[Number] = None, global_batch: Optional[Number] = None, weights: str = "initial", loss: Optional[Loss] = None,
         output: Optional[Callable[[Any], Tensor]] = None, batch: Optional[Split] = None, ignore_index: Optional[int] = None
         ) -> Diagnosis:
    """What BatchNorm's statistics of one, two, four ... images miss, layer by layer, what that does to logits and loss, and
    whether to synchronize or to normalise by image: the figures and the rule of `lockstep diagnose`. Nothing is trained. The
    model is left as it was, also its running statistics.

    model: any network with BatchNorm layers; it is run on the device of its first parameter. A compiled one is run as it was
      before.
    loader: batches of training images [N, C, ...] of one size, alone, or as (images, labels), or as a dictionary with
      "image" and "label". Shuffle it: neighbours are taken for a device's batch. One batch does, too, and a map-style data set,
      whose images are then chosen by chance. With labels [N] or [N, H, W] of classes, or one-hot ones, the losses are told.
    images: how many to look at, at most; default: 64, or twice the most per device. They go forward all together once.
    global_batch: images of a training step on all devices; as many per device need no synchronization.
    weights: where those of the model come from, which a model does not know. "initial": a training begins with them.
      "pretrained": another training has made them, and yours begins with them. "trained": your training has made them.
      Pretrained weights are not told to normalise by image. Trained ones may be told to evaluate by each image's own
      statistics.
    loss: `loss(logits, labels)`, a mean over images; default: cross-entropy, of one output channel binary cross-entropy.
    output: takes the logits [N, classes, ...] from what the model returns; default: a tensor, "out", `.logits` or the first.
    batch: takes the images, or (images, labels), from what the loader gives.
    ignore_index: a label that does not count; default: 255 where it is no class, as the program has it.

    Raises ConfigError for numbers and weights other than these. Raises LockstepError for TorchScript, for a network that takes
    statistics of several images outside of BatchNorm layers or whose layers see other rows than images, where there are fewer than
    two sets of images, where images differ in size, and where images or logits are not finite or all the same.
    """
    numbers = image_counts(images_per_device)
    most = max(_IMAGES, 2 * max(numbers)) if images is None else whole_number(images, 1, "images=64, a whole number of at least 1")
    whole_batch = None if global_batch is None else whole_number(global_batch, 1, "global_batch=8, a whole number of at least 1")
    if weights not in ORIGINS:
        raise refused(f"expected weights={' or '.join(map(repr, ORIGINS))}, where the model's weights come from, got {weights!r}")
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    expect_modules_of_python(model)
    inputs, labels = first_images(loader, most, next(model.parameters(), None), batch)
    if len(inputs) < 2 * max(numbers):
        raise LockstepError(f"a diagnosis of {max(numbers)} images per device compares at least two sets of them, "
                            f"{2 * max(numbers)} images, and there are {len(inputs)}; give more images, or smaller numbers")
    _expect_images_that_differ(inputs)
    with ExitStack() as while_looking:
        while_looking.enter_context(modes_kept(model))
        while_looking.enter_context(without_ranks(model))
        if hasattr(torch, "compiler") and hasattr(torch.compiler, "set_stance"):
            while_looking.enter_context(torch.compiler.set_stance("force_eager"))  # parts of it may be compiled, too
        network = Network(model, inputs, labels, loss, output, ignore_index)
        try:
            expect_nothing_outside(model, inputs[:2])
        except LockstepError:
            raise
        except Exception as error:  # whatever a network raises
            raise LockstepError(f"the model refuses images {[2, *inputs.shape[1:]]}: {type(error).__name__}: {error}; the loader's "
                                f"batches are to be images [N, C, ...] as the model takes them") from error
        whole = network.forward(len(inputs))
        own = network.forward(1, _without_variance(whole, len(inputs))) if whole.calls and labels is not None else None
        stored = network.forward(1, network.running()) if weights == "trained" and own is not None else None
        by_images = [_diagnose_images(network, whole, own, stored, number, whole_batch, weights)
                     for number in numbers if whole.calls]
    called = {name for name, _, _ in whole.calls}
    return Diagnosis(images=len(inputs), size=list(inputs.shape[2:]), weights=weights, loss=whole.loss, by_images=by_images,
                     not_run=[name for name in network.layers if name not in called])


def _diagnose_images(network: Network, whole: Pass, own: Optional[Pass], stored: Optional[Pass], together: int,
                     global_batch: Optional[int], weights: str) -> ImagesDiagnosis:
    """`whole`: of all images together. `own`: of each by itself; None without labels. `stored`: by the running statistics of
    trained weights; None of others."""
    layers = [noise_of(name, moments, together, eps) for name, eps, moments in whole.calls]
    effects = dict.fromkeys(("logit_noise", "logit_disparity", "changed", "loss", "running_loss"), float("nan"))
    if min(layer.values for layer in layers) > 1:  # else there is no training
        spread = _spread(whole.logits)
        batch = own if own is not None and together == 1 else network.forward(together)
        running = network.forward(together, _settled(batch, together))
        effects = {"logit_noise": _distance(batch.logits, whole.logits) / spread,
                   "logit_disparity": _distance(batch.logits, running.logits) / spread,
                   "changed": float((_classes(batch.logits) != _classes(running.logits)).mean()),
                   "loss": batch.loss, "running_loss": running.loss}
    verdict, reason = judge(together, layers, global_batch, effects["loss"], effects["running_loss"], weights,
                            stored.loss if stored is not None else float("nan"))
    return ImagesDiagnosis(images_per_device=together, verdict=verdict, reason=reason, layers=layers,
                           own_loss=own.loss if own is not None else float("nan"),
                           stored_loss=stored.loss if stored is not None else float("nan"), **effects)


def _settled(batch: Pass, together: int) -> Running:
    """The running statistics of each layer that training by such slices leaves behind."""
    slices: Any = {}
    for name, _, moments in batch.calls:
        slices.setdefault(name, []).append(merge_neighbours(moments, together))
    return {name: settled_statistics(of_layer) for name, of_layer in slices.items()}


def _without_variance(whole: Pass, images: int) -> Running:
    """Running statistics for the layers that see one value per channel of an image, whose own would leave nothing of it."""
    settled = _settled(whole, images)
    return {name: settled[name] for name, _, moments in whole.calls if moments.count == 1}


def _spread(logits: Array) -> float:
    """Standard deviation of logits [images, classes, ...] over positions, as a root mean square over classes. Raises
    LockstepError where there is none to measure distances in."""
    of_class = np.moveaxis(logits, 1, 0).reshape(logits.shape[1], -1).astype(np.float64)
    spread = float(np.sqrt(of_class.var(axis=1).mean()))
    if not np.isfinite(spread):
        raise LockstepError("expected finite logits, got NaN or infinity from finite images; look for such values in the "
                            "model's weights")
    if spread == 0:
        raise LockstepError("expected logits that differ between images or positions, got the same everywhere; a last layer of "
                            "zeros does that: give it random weights")
    return spread


def _classes(logits: Array) -> Array:
    """Of each position; one logit tells two classes apart by its sign."""
    classes: Array = logits[:, 0] > 0 if logits.shape[1] == 1 else logits.argmax(1)
    return classes


def _distance(a: Array, b: Array) -> float:
    """Root mean square, over the images that both have."""
    count = min(len(a), len(b))
    return float(np.sqrt(np.square(a[:count].astype(np.float64) - b[:count]).mean()))


def _expect_images_that_differ(images: Tensor) -> None:
    finite = torch.isfinite(images).flatten(1).all(1)
    if not finite.all():
        raise LockstepError(f"expected images of finite numbers, got NaN or infinity in {int((~finite).sum())} of "
                            f"{len(images)}, first in number {int(finite.long().argmin())} (from 0); look at how your data set "
                            f"normalises")
    if (images == images[0]).all():
        raise LockstepError(f"expected images that differ, got {len(images)} times the same; look at what the loader gives")
