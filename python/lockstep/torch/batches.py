"""Images and labels out of what people have: loaders, data sets, tensors, arrays."""
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional, Tuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..errors import LockstepError

Split = Callable[[Any], Any]  # images, or (images, labels), of what a loader gives

IMAGES = ("image", "images", "img", "imgs", "pixel_values", "input", "inputs", "data", "x")
LABELS = ("label", "labels", "mask", "masks", "gt", "seg", "target", "targets", "y")


def first_images(source: Any, count: int, like: Optional[Tensor], split: Optional[Split]) -> Tuple[Tensor, Optional[Tensor]]:
    """`count` images [N, C, ...] of `source` and their labels; None where it has none. They stand on the device of `like`, a
    parameter of the network, and have its type.

    Raises LockstepError for what holds no images, and says what to write.
    """
    images: List[Tensor] = []
    labels: List[Optional[Tensor]] = []
    for batch in _batches(source, count):
        image, label = _parts(batch, split)
        if images and image.shape[1:] != images[0].shape[1:]:
            raise LockstepError(f"expected images of one size, got {list(images[0].shape[1:])} and {list(image.shape[1:])}; "
                                f"crop or resize them in the data set")
        images.append(image)
        labels.append(label)
        if sum(len(each) for each in images) >= count:
            break
    if not images:
        raise LockstepError("expected batches of images from the loader, and it has none")
    together = torch.cat(images)[:count].to(device=like.device if like is not None else None,
                                            dtype=like.dtype if like is not None else None)
    targets = [label for label in labels if label is not None]
    if len(targets) < len(images):
        return together, None
    return together, torch.cat(targets)[:count].to(together.device)


def labelled_batches(source: Any) -> Iterator[Tuple[Any, Tensor]]:
    """All images of `source` with their labels, by batches. Raises LockstepError for images without labels, and for none."""
    batch = None
    for batch in _batches(source, None):
        images, labels = _named_parts(batch)
        of_images = _tensor(labels)
        if of_images is None:
            raise LockstepError(f"expected batches (images, labels), got {_described(batch)}")
        yield torch.from_numpy(images) if isinstance(images, np.ndarray) else images, of_images
    if batch is None:
        raise LockstepError("expected batches (images, labels), and there are none; a generator can be read once")


def _batches(source: Any, count: Optional[int]) -> Iterable[Any]:
    """A loader as it is. One tensor, array, pair or dictionary is one batch; of a data set `count` images are chosen by chance."""
    of_batches = isinstance(source, tuple) and source and isinstance(source[0], (tuple, list, Mapping))
    if isinstance(source, (Tensor, np.ndarray, tuple, Mapping)) and not of_batches or _is_pair(source):
        return [source]
    if isinstance(source, Dataset) and not isinstance(source, IterableDataset) and count is not None:
        size = len(source)  # type: ignore[arg-type]
        chosen = torch.randperm(size, generator=torch.Generator().manual_seed(0))[:count].tolist()
        return DataLoader(source, batch_size=1, sampler=chosen)
    if isinstance(source, Dataset):
        return DataLoader(source, batch_size=1)
    if not isinstance(source, Iterable):
        raise LockstepError(f"expected a loader, a data set, or images [N, C, ...], got {type(source).__name__}")
    return source


def _is_pair(source: Any) -> bool:
    """Whether a list is a batch of images and labels, as DataLoader makes it, and no list of batches."""
    if not isinstance(source, list) or len(source) != 2 or not all(isinstance(each, Tensor) for each in source):
        return False
    images, labels = source
    if len(images) != len(labels) or not images.is_floating_point():
        return False
    like_images = labels.is_floating_point() and (labels.dim(), labels.shape[1:2]) == (images.dim(), images.shape[1:2])
    return not like_images or _are_whole(labels) and not _are_whole(images)  # masks in floats have no fractions


def _are_whole(values: Tensor) -> bool:
    return torch.equal(values, values.round())


def _named_parts(batch: Any) -> Tuple[Any, Any]:
    """Images and labels of a batch, whatever they are; None for labels that it has not."""
    if isinstance(batch, Mapping):
        image = next((batch[name] for name in IMAGES if name in batch), None)
        if image is None:
            raise LockstepError(f"expected batches of images, got a dictionary of {', '.join(map(repr, batch))}; call them 'image' "
                                f"and 'label', or say which is which: lens(..., batch=lambda b: (b['the images'], b['the labels']))")
        return image, next((batch[name] for name in LABELS if name in batch), None)
    if isinstance(batch, (tuple, list)) and batch:
        return batch[0], batch[1] if len(batch) > 1 else None
    return batch, None


def _parts(batch: Any, split: Optional[Split]) -> Tuple[Tensor, Optional[Tensor]]:
    """Images and labels of what a loader gives."""
    image, label = _named_parts(split(batch) if split is not None else batch)
    images, labels = _tensor(image), _tensor(label)
    if images is None or images.dim() < 2:
        raise LockstepError(f"expected batches of images [N, C, ...], alone or as (images, labels), got {_described(image)}; say "
                            f"where they are: lens(..., batch=lambda b: (images, labels))")
    if not images.is_floating_point():
        raise LockstepError(f"expected images of floating-point numbers, normalised as your training normalises them, got "
                            f"{str(images.dtype).replace('torch.', '')}; write lens(..., batch=lambda b: (b[0].float() / 255, b[1]))")
    return images, labels if labels is not None and len(labels) == len(images) else None


def _tensor(value: Any) -> Optional[Tensor]:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value.astype(np.int64) if value.dtype.kind == "u" and value.itemsize > 1
                                                     else value))
    return value if isinstance(value, Tensor) else None


def _described(value: Any) -> str:
    tensor = _tensor(value)
    return f"{list(tensor.shape)}" if tensor is not None else type(value).__name__


def class_labels(labels: Tensor, logits: Tensor, ignored: int) -> Tensor:
    """Labels [N, ...] of classes for `logits` [N, classes, ...], of those, of [N, 1, ...] and of one-hot ones.

    Raises LockstepError for labels of another shape, and for classes that there are not.
    """
    classes, places = logits.shape[1], logits.shape[:1] + logits.shape[2:]
    if labels.dim() == logits.dim() and labels.shape[1] == classes > 1:
        labels = labels.argmax(1)
    elif labels.dim() == logits.dim() and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != places:
        raise LockstepError(f"expected labels {list(places)} for logits {list(logits.shape)}, got {list(labels.shape)}; let the "
                            f"model bring logits to their size, or do it by lens(..., output=lambda returned: ...)")
    whole = labels.long()
    if labels.is_floating_point() and not torch.equal(whole.to(labels.dtype), labels):
        raise LockstepError("expected labels that are numbers of classes, got fractions; make them numbers, or give lens() a loss= "
                            "of your own, or images alone")
    unknown = whole[(whole != ignored) & ((whole < 0) | (whole >= max(classes, 2)))]
    if len(unknown):
        of_one = " for a model of one output channel" if classes == 1 else ""
        known = "0 and 1" if classes <= 2 else f"0 to {classes - 1}"
        raise LockstepError(f"expected labels {known}{of_one} ({ignored} does not count), got {int(unknown[0])}; if that does not "
                            f"count, write ignore_index={int(unknown[0])}; else give lens() a loss= of your own, or images alone")
    return whole
