"""One training of a comparison, as the training function sees it, and the folder of its run."""
import copy
import hashlib
import json
import math
import resource
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from .._json_files import SCHEMA
from .._files import open_lines, write_text
from .._toml import write_toml
from ..errors import LockstepError
from ..table import Array
from .batch_norm import GhostBatchNorm
from .convert import convert, ghost, own_statistics, revert
from .hooks import before_forward, modes_kept, tensors_of
from .process_group import is_distributed

Evaluate = Callable[[nn.Module], Tuple[Any, float]]  # a confusion matrix [labels, classes], and the mean loss

MODES = ("local", "sync", "instance")


class Ranks:
    """The processes of torch.distributed that train together, where there are any; else this one alone."""

    def __init__(self) -> None:
        distributed = torch.distributed
        together = is_distributed()
        self.rank = distributed.get_rank() if together else 0
        self.size = distributed.get_world_size() if together else 1

    def all(self, make: Callable[[], Any]) -> List[Any]:
        """What `make` returns on every rank, in their order. What it raises on one ends all."""
        if self.size == 1:
            return [make()]
        own: Any = None
        failure: Optional[Exception] = None
        try:
            own = make()
        except Exception as error:
            failure = error
        # Only errors of this package are known to travel as they are.
        told = failure if failure is None or isinstance(failure, LockstepError) else LockstepError(
            f"rank {self.rank} failed: {type(failure).__name__}: {failure}")
        said: List[Any] = [None] * self.size
        torch.distributed.all_gather_object(said, (own, told))
        for raised in (failure, *(each for _, each in said)):
            if raised is not None:
                raise raised
        return [made for made, _ in said]

    def first(self, make: Callable[[], Any]) -> Any:
        """What `make` returns on rank 0, which alone calls it. What it raises there ends all."""
        return self.all(make if self.rank == 0 else lambda: None)[0]


class Trial:
    """A mode and a seed. The training function makes its network, has it changed by convert(), trains it as ever, calls log()
    after each step, and score() after each epoch or at the end.

    rank, ranks: of the processes that call the function together, under torchrun. batch: images of a step on this rank."""

    def __init__(self, folder: Path, mode: str, seed: int, global_batch: int, images_per_device: int, curve: bool,
                 classes: List[str], score_name: str, together: Ranks):
        self.folder = folder
        self.mode = mode
        self.seed = seed
        self.rank = together.rank
        self.ranks = together.size
        self.global_batch = global_batch
        self.batch = global_batch // together.size
        self.images_per_device = images_per_device
        self.curve = curve
        self.classes = classes
        self.score_name = score_name
        self.steps = 0
        self._passes = 0
        self._together = together
        self._model: Optional[nn.Module] = None
        self._evaluate: Optional[Evaluate] = None
        self._evaluations: List[Dict[str, Any]] = []
        self._losses: List[float] = []
        self._seconds: List[float] = []  # of steps
        self._since: Optional[float] = None  # when the step under way began; nobody sees when the first did
        self._order = hashlib.blake2b(digest_size=8)
        self._weights = ""
        self._hooks: List[Any] = []

    def convert(self, model: nn.Module) -> nn.Module:
        """`model` as the mode has it: "local" normalises slices of the batch, as so many devices would, "sync" the whole batch
        of all ranks, "instance" each image by itself. Called once, before the optimizer is made, with the initial weights, and
        before DistributedDataParallel wraps the network.

        Raises LockstepError for a second call.
        """
        if self._model is not None:
            raise LockstepError("convert() was called twice in one training: a trial trains one network")
        self._weights = digest_of(revert(model).state_dict())
        if self.mode == "local":
            model = ghost(model, self.batch // self.images_per_device)
            for layer in model.modules():
                if isinstance(layer, GhostBatchNorm):
                    self._hooks.append(before_forward(layer, self._expect_rows))
        elif self.mode == "sync" and self.ranks > 1:
            model = convert(model)
        elif self.mode == "instance":
            model = own_statistics(model)
        self._model = model
        self._hooks.append(before_forward(model, self._see))
        return model

    def log(self, loss: float) -> None:
        """The loss of a training step that has been done."""
        self.steps += 1
        now = time.perf_counter()
        if self._since is not None:
            self._seconds.append(now - self._since)
        self._since = now
        self._losses.append(float(loss))

    def score(self, evaluate: Evaluate) -> None:
        """Scores the network as it is. `evaluate(model)` returns a confusion matrix [labels, classes] and the mean loss over
        validation images; lockstep.torch.evaluate() is one. After the last call the network is also scored by own statistics.
        Every rank calls it, and that of rank 0 counts, so that it takes all images.
        """
        scored = self._together.all(lambda: self._scored(self._expect_model(), evaluate, "device0"))
        self._evaluations.append(scored[self.rank])
        self._evaluate = evaluate
        self._since = time.perf_counter()  # an evaluation is no part of a step

    def run(self, train: Callable[["Trial"], Any]) -> None:
        """Calls the training function; rank 0 writes the run's folder."""
        try:
            self._run(train)
        finally:
            for hook in self._hooks:  # whoever keeps the network may do with it as he likes
                hook.remove()
            self._hooks.clear()
            self._model = self._evaluate = None  # its memory is for the next

    def _run(self, train: Callable[["Trial"], Any]) -> None:
        self._together.first(self._write_header)
        train(self)
        end = self._end()
        self._together.first(lambda: self._write_end(end))

    def _write_header(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / "config.toml", write_toml(self._config()))
        write_text(self.folder / "events.jsonl", _line({**self._header(), "type": "header"}))

    def _write_end(self, end: Dict[str, Any]) -> None:
        with open_lines(self.folder / "events.jsonl") as events:
            events.writelines(_line(each) for each in (*({"type": "eval", **each} for each in self._evaluations), end))

    def _seen(self) -> Tuple[str, str, int]:
        """Initial weights, order of data and number of steps."""
        if self._evaluate is None or not self._losses:
            raise LockstepError(f"{self.folder.name}: the training function has to call trial.log(loss) after each step and "
                                f"trial.score(evaluate) at the end")
        if self._passes < self.steps:
            raise LockstepError(f"{self.folder.name}: {self.steps} steps were logged, and the network that convert() returned was "
                                f"called {self._passes} times in training: call it after train(), and neither its forward() nor a part of it, so "
                                f"that the images can be compared")
        return self._weights, self._order.hexdigest(), self.steps

    def _end(self) -> Dict[str, Any]:
        """What the run's last line says, of what all ranks have seen."""
        seen = self._together.all(self._seen)
        for rank, (weights, _, steps) in enumerate(seen):
            if (weights, steps) != (self._weights, self.steps):
                raise LockstepError(f"{self.folder.name}: rank {rank} has other initial weights or another number of steps than "
                                    f"rank {self.rank}: call torch.manual_seed(trial.seed) before the network is made, and give "
                                    f"every rank as many batches")
        orders = [order for _, order, _ in seen]
        return {"type": "end", "step": self.steps, "status": "done", "exit_code": 0, "summary": self._together.all(self._summary)[self.rank],
                "initial_weights": self._weights, "data_order": orders[0] if self.ranks == 1 else digest_of(orders)}

    def _expect_model(self) -> nn.Module:
        if self._model is None:
            raise LockstepError("score() needs the network that trial.convert(model) has changed")
        return self._model

    def _see(self, model: nn.Module, inputs: Tuple[Any, ...], named: Dict[str, Any]) -> None:
        """Keeps a digest of what the network is trained with."""
        if not model.training:
            return
        self._passes += 1
        seen = list(tensors_of([inputs, named]))
        if not seen or seen[0].dim() == 0:
            raise LockstepError(f"{self.folder.name}: the network was called without images, or by a name, which PyTorch tells "
                                f"from 2.0 on: give them as its first argument")
        images = len(seen[0])
        if images != self.batch:
            share = "the global batch" if self.ranks == 1 else f"rank {self.rank}'s of {self.global_batch}"
            raise LockstepError(f"{self.folder.name}: expected batches of {self.batch} images, {share}, got {images}; drop the last "
                                f"batch of an epoch (DataLoader(..., drop_last=True)), or say global_batch={images * self.ranks}")
        for each in seen:
            self._order.update(_bytes_of(each))

    def _expect_rows(self, layer: nn.Module, inputs: Tuple[Any, ...], named: Dict[str, Any]) -> None:
        """That slices of a layer's rows are those of devices."""
        rows = next(tensors_of([inputs, named]), None)
        if layer.training and rows is not None and len(rows) != self.batch:
            assert isinstance(layer, GhostBatchNorm)
            raise LockstepError(f"{self.folder.name}: {layer.label} sees {len(rows)} rows of {self.batch} images, so that nobody can "
                                f"tell which rows are a device's: let the network call it with one row for each image")

    def _scored(self, model: nn.Module, evaluate: Evaluate, by: str) -> Dict[str, Any]:
        begin = time.perf_counter()
        with torch.no_grad(), modes_kept(model):
            matrix, loss = evaluate(model.eval())
        confusion = self._expect_matrix(matrix)
        scored: Dict[str, Any] = {"step": self.steps, "eval_stats": by, "loss": float(loss), "images": 0,
                                  "seconds": time.perf_counter() - begin, "confusion": confusion.tolist(),
                                  self.score_name: score_of(confusion, self.score_name)}
        return {**scored, "top5": None} if self.score_name == "top1" else scored

    def _by_own(self, model: nn.Module) -> Dict[str, Any]:
        assert self._evaluate is not None
        return self._scored(own_statistics(copy.deepcopy(model)), self._evaluate, "own")

    def _expect_matrix(self, matrix: Any) -> Array:
        confusion = np.asarray(matrix.cpu() if isinstance(matrix, Tensor) else matrix)
        if confusion.shape != (len(self.classes),) * 2 or confusion.min() < 0:
            raise LockstepError(f"expected evaluate(model) to return a confusion matrix of counts, {len(self.classes)} labels x "
                                f"classes, and a loss; got {list(confusion.shape)}")
        return confusion.astype(np.int64)

    def _header(self) -> Dict[str, Any]:
        header: Dict[str, Any] = {"schema": SCHEMA, "step": 0, "run": "torch", **self._identity(), "max_iters": 0,
                                  "environment": {"torch": torch.__version__}}
        if self.curve and self.mode == "local":
            header["images_per_device"] = self.images_per_device
        return header

    def _identity(self) -> Dict[str, Any]:
        # On a curve slices stand for devices.
        mode = "ghost" if self.curve and self.mode == "local" else self.mode
        return {"config_hash": self.key, "bn_mode": mode, "seed": self.seed, "devices": f"cpu:{self.ranks}"}

    @property
    def key(self) -> str:
        """What tells whether a finished run is this one."""
        what = [self.mode, self.seed, self.global_batch, self.images_per_device, self.classes, self.score_name]
        return digest_of(what if self.ranks == 1 else [*what, self.ranks])

    def _config(self) -> Dict[str, Any]:
        return {"run": {"name": "torch", "seed": self.seed}, "bn": {"mode": self._identity()["bn_mode"]},
                "batch": {"global": self.global_batch},
                # Only the training function knows it; the program wants a root.
                "data": {"root": "the training function", "num_classes": len(self.classes)}}

    def _summary(self) -> Dict[str, Any]:
        model = self._expect_model()
        last = self._evaluations[-1]
        best = max(self._evaluations, key=lambda each: float(each[self.score_name]))
        others = [] if self.mode == "instance" else [self._by_own(model)]
        seconds = self._seconds or [0.0]
        step, mean = float(np.median(seconds)), float(np.mean(seconds))
        return {**self._identity(), "placement": f"cpu:{self.ranks}", "device_count": self.global_batch // self.images_per_device,
                "global_batch": self.global_batch, "iterations": self.steps, "max_iters": self.steps,
                "parameters": sum(each.numel() for each in model.parameters()), "classes": self.classes, "evaluation": last,
                "other_stats": others, f"best_{self.score_name}": best[self.score_name], "best_iter": best["step"],
                "train_loss": float(np.mean(self._losses[-20:])),
                "times": {"step": mean, "data": 0.0, "compute": mean, "bn_wait": 0.0,
                          "exchange": 0.0, "median_step": step},
                "images_per_second": self.global_batch / step if step else 0.0, "waiting_share": 0.0,
                "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "batch_norms": []}


def score_of(confusion: Array, name: str) -> float:
    """In percent, of a confusion matrix [labels, classes]: "mIoU" over classes that occur, or "top1"."""
    hits = np.diag(confusion).astype(np.float64)
    if name == "top1":
        return float(100 * hits.sum() / max(confusion.sum(), 1))
    union = confusion.sum(0) + confusion.sum(1) - hits
    return float(100 * (hits[union > 0] / union[union > 0]).mean())


def digest_of(what: Any) -> str:
    """Of a state dict's bytes, or of what JSON can say."""
    digest = hashlib.blake2b(digest_size=8)
    if not isinstance(what, dict):
        digest.update(json.dumps(what).encode())
        return digest.hexdigest()
    for name, value in what.items():
        digest.update(name.encode())
        if isinstance(value, Tensor):  # and no extra state
            digest.update(_bytes_of(value))
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _finite(value: Any) -> Any:
    """With null for what is no finite number, which JSON has not."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


def _line(event: Dict[str, Any]) -> str:
    return json.dumps(_finite(event)) + "\n"
