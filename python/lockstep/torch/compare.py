"""A training function of one's own under each BatchNorm mode and seed, and what the difference is worth."""
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from .._arguments import Number, Numbers, PathLike, image_counts, path_text, refused, seeds_of, whole_number
from .._json_files import read_json_lines
from .._program import find_program, run_program
from .._progress import Progress, teller
from ..comparison import Comparison, read_comparison
from ..errors import LockstepError
from .batches import class_labels, labelled_batches
from .hooks import modes_kept
from .passes import logits_of
from .trial import MODES, Ranks, Trial


def compare(train: Callable[[Trial], Any], *, output: PathLike, global_batch: Number, classes: Union[Number, Iterable[str]],
            modes: Union[str, Iterable[str]] = ("local", "sync"), seeds: Numbers = 6, images_per_device: Numbers = 1, score: str = "mIoU", progress: Progress = True) -> Comparison:
    """Calls `train(trial)` for every mode and seed, and ends as lockstep.compare() does: the differences seed by seed with their
    intervals and tests, comparison.json and report.html in `output`.

    train: your training, of any network and with any loop (see Trial). It takes its random numbers from trial.seed, so that a
      seed has the same initial weights and order of data in every mode; that is checked, by digests.
    global_batch: images of a training step. images_per_device: how many of them share statistics in mode "local"; slices of the
      batch stand for devices. Several numbers make a curve.
    modes: "local", "sync", "instance". seeds: how many, or a list. classes: names, or how many.
    score: "mIoU", or "top1" for a classifier; from the confusion matrices that your evaluation returns.

    Under torchrun, after init_process_group(), every rank calls it: they train together, "sync" over all of them, and rank 0
    writes. A rank's step has global_batch / ranks images.

    The same call again goes on after the last run that was finished; with more seeds, modes or numbers it trains those that are
    missing. Runs are known by mode, seed, batch and classes: after a change of `train` take another folder.
    Raises ConfigError for arguments other than these, ProgramNotFoundError before any training where there is no program, and
    LockstepError where runs of one seed, or ranks, did not begin alike. What `train` raises ends all.
    """
    together = Ranks()
    together.first(find_program)
    folder = Path(path_text(output))
    names = list(classes) if isinstance(classes, Iterable) else [
        f"class {number}" for number in range(whole_number(classes, 1, "classes as names or as their number"))]
    if len(names) < 2:
        raise refused(f"expected classes as two names or more, or as their number, got {', '.join(map(repr, names)) or 'none'}")
    numbers = image_counts(images_per_device)
    batch = whole_number(global_batch, 1, "global_batch=8, a whole number of at least 1")
    plan = _planned([mode.strip() for mode in modes.split(",")] if isinstance(modes, str) else list(modes), numbers, batch, together.size)
    if score not in ("mIoU", "top1"):
        raise refused(f"expected score=\"mIoU\" or \"top1\", got {score!r}")
    trials = [Trial(folder / f"{name}-s{seed}", mode, seed, batch, images, len(numbers) > 1, names, score, together)
              for seed in seeds_of(seeds) for name, mode, images in plan]
    first: Dict[int, Tuple[str, Dict[str, Any]]] = {}
    tell = teller(progress)
    for number, trial in enumerate(trials, 1):
        together.first(lambda: tell(f"[{number}/{len(trials)}] {trial.folder.name}"))
        if not together.first(lambda: _is_done(trial)):
            trial.run(train)
        together.first(lambda: _expect_alike(first, trial))
    together.first(lambda: run_program(["compare", str(folder), "-o", str(folder), "--json", "--no-images"], False,
                                       keep_stdout=True))
    return read_comparison(folder)


def evaluate(model: Callable[[Any], Any], loader: Any, classes: int, ignore_index: int = 255) -> Tuple[Tensor, float]:
    """The confusion matrix [labels, classes] of a model that returns logits [N, classes, ...], as lens() finds them by default, and
    the mean cross-entropy, over what lens() takes with labels, all of it: what trial.score() wants. A module is put to evaluation
    for it; a function may call one. Of two classes there may be one logit, of class 1. Raises ConfigError for fewer than two
    classes, and LockstepError for logits of other classes, and where there is nothing to evaluate."""
    whole_number(classes, 2, "as many classes as the labels have, and classes=2 for one output channel")
    if not isinstance(model, nn.Module):
        return _evaluated(model, loader, classes, ignore_index)
    with modes_kept(model):
        return _evaluated(model.eval(), loader, classes, ignore_index)


@torch.no_grad()
def _evaluated(model: Callable[[Any], Any], loader: Any, classes: int, ignore_index: int) -> Tuple[Tensor, float]:
    matrix = torch.zeros(classes, classes, dtype=torch.int64)
    total, labels_seen = 0.0, 0
    for images, labels in labelled_batches(loader):
        logits = _of_classes(logits_of(model(images)), classes)
        wanted = class_labels(labels.to(logits.device), logits, ignore_index)
        counts = wanted != ignore_index
        total += float(nn.functional.cross_entropy(logits.float(), wanted, ignore_index=ignore_index, reduction="sum"))
        labels_seen += int(counts.sum())
        places = wanted[counts] * classes + logits.argmax(1)[counts]
        matrix += torch.bincount(places.cpu(), minlength=classes ** 2).view(classes, classes)
    return matrix, total / max(labels_seen, 1)


def _of_classes(logits: Tensor, classes: int) -> Tensor:
    if logits.shape[1] == 1 and classes == 2:
        return torch.cat([torch.zeros_like(logits), logits], 1)  # a sigmoid is the softmax of these two
    if logits.shape[1] == classes:
        return logits
    raise LockstepError(f"expected logits [N, {classes}, ...] of {classes} classes from the model, got {list(logits.shape)}; evaluate "
                        f"a model that returns them, or give trial.score() a function of your own")


def _planned(modes: List[str], numbers: List[int], global_batch: int, ranks: int) -> List[Tuple[str, str, int]]:
    """Folder, mode and images that share statistics, of each cell."""
    unknown = [mode for mode in modes if mode not in MODES]
    if unknown or not modes:
        raise refused(f"expected modes of {', '.join(MODES)}, got {', '.join(unknown) or 'none'}")
    if global_batch % ranks:
        raise refused(f"expected a global batch that {ranks} ranks share evenly, got {global_batch}")
    for number in numbers:
        if ranks > 1 and global_batch // ranks % number:
            raise refused(f"expected images per device that divide a rank's {global_batch // ranks} images, got {number}")
        if global_batch % number or number == global_batch:
            raise refused(f"expected images per device that divide the global batch of {global_batch}, and are fewer, got {number}")
    cells = []
    for mode in dict.fromkeys(modes):
        for number in numbers if mode == "local" else numbers[:1]:
            cells.append((f"{mode}-n{number}" if mode == "local" and len(numbers) > 1 else mode, mode, number))
    return cells


def _end(trial: Trial) -> Optional[Dict[str, Any]]:
    events = read_json_lines(trial.folder / "events.jsonl")
    return events[-1] if events and events[-1].get("type") == "end" else None


def _is_done(trial: Trial) -> bool:
    end = _end(trial)
    if end is not None and (end.get("summary") or {}).get("config_hash") != trial.key:
        raise LockstepError(f"{trial.folder} holds another run, or one with another global batch, images per device or classes; take "
                            f"another output folder")
    return end is not None


def _expect_alike(first: Dict[int, Tuple[str, Dict[str, Any]]], trial: Trial) -> None:
    """That all runs of a seed began with the same weights, and saw the same images in the same order."""
    end = _end(trial)
    assert end is not None
    name, other = first.setdefault(trial.seed, (trial.folder.name, end))
    for key, what, advice in (("initial_weights", "other initial weights", "call torch.manual_seed(trial.seed) before it makes the "
                               "network"),
                              ("data_order", "other images, or another order of them", "give the loader a generator of its own, "
                               "torch.Generator().manual_seed(trial.seed), and the augmentation likewise")):
        if end[key] != other[key]:
            raise LockstepError(f"{trial.folder.name} has {what} than {name}, so that their difference is not the mode's: let the "
                                f"training function {advice}, and take another output folder")
