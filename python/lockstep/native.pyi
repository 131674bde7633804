"""
Training and prediction by Lockstep's library, in this process, for a loop of one's own.

    from lockstep.native import DataParallel
    net = DataParallel("cpu:4", "unet", (8, 3, 64, 64), num_classes=3, bn="sync")
    print(net.train_step(images, labels).loss)

This needs the compiled module `lockstep_native`, which docs/do/python.md builds.
"""

from collections.abc import Mapping, Sequence
import os
from typing import Any, Protocol

import numpy
from numpy.typing import NDArray


class SupportsDLPack(Protocol):
    """An array that others may look into, such as a tensor of PyTorch."""

    def __dlpack__(self) -> object: ...

Array = NDArray[Any] | SupportsDLPack
Options = str | Mapping[str, object]

class DataParallel:
    """Trains a network on all its devices. Used by one thread at a time."""

    def __init__(self, devices: str, arch: str, input: tuple[int, int, int, int], num_classes: int, *, losses: Options | Sequence[Options] = 'cross_entropy', optimizer: Options = 'sgd', bn: Options = 'sync', model: Mapping[str, object] | None = None, seed: int = 0, ignore_index: int = 255, accumulate: int = 1, stall_timeout: float = 60.0, tf32: bool = True) -> None:
        """
        devices: 'cpu:4' for four virtual devices of the processor, 'cuda:0,1' for GPUs.
        input: [N, C, H, W] of the largest batch that will come.
        losses, optimizer, bn: a word, or a dictionary with the keys of a configuration's table,
        such as {'type': 'sgd', 'lr': 0.1}; model: the keys of [model], such as {'width': 8}.
        A loss may also have an 'output', 'out' or 'aux'. tf32: run.tf32, of GPUs.
        """

    def train_step(self, images: Array, labels: Array, lr: float | None = None) -> StepResult:
        """
        One step on a batch: float32 images [N, C, H, W], and a class for each pixel [N, H, W]
        or image [N]. lr: in place of the optimizer's.
        """

    @property
    def steps(self) -> int:
        """
        Steps that are done. Set it where a training goes on: bias corrections and dropout
        go by it.
        """

    @steps.setter
    def steps(self, arg: int, /) -> None: ...

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Parameters and running statistics under PyTorch's names: copies."""

    def load_state_dict(self, state_dict: Mapping[str, Array], strict: bool = True) -> ImportSummary:
        """
        Gives them to all devices. strict: anything missing, left over or of another shape is
        an error, and nothing is loaded.
        """

    @property
    def size(self) -> int:
        """The number of devices."""

    @property
    def parameter_count(self) -> int:
        """Learnable numbers."""

    @property
    def placement_obstacle(self) -> str:
        """
        Why another number of devices comes to other bits; '' where it does not.
        """

    def __repr__(self) -> str: ...

class ImportSummary:
    """What load_state_dict() found."""

    @property
    def loaded(self) -> int:
        """How many tensors."""

    @property
    def skipped(self) -> list[str]:
        """Those of another shape, with both shapes."""

    @property
    def missing(self) -> list[str]:
        """Names of the network's that did not come."""

    @property
    def unexpected(self) -> list[str]:
        """Names that the network has not."""

    def __str__(self) -> str: ...

class Predictor:
    """
    Runs a trained network on one device, by its running statistics or by each image's own. Threads take turns.
    """

    def __init__(self, arch: str, weights: Mapping[str, Array], num_classes: int, *, model: Mapping[str, object] | None = None, bn: Options | None = None, device: str = 'cpu:1', threads: int = 0, output: str = 'out', own_statistics: bool = False, tf32: bool = True) -> None:
        """
        weights: a state_dict() of the network. model and bn as in training: bn's eps counts.
        threads: of the processor; 0: all. own_statistics: every image is normalised by its own mean
        and variance (bn.eval_stats = "own"). tf32: run.tf32, of GPUs.
        """

    def predict(self, images: Array) -> tuple[NDArray[numpy.int32], NDArray[numpy.float32]]:
        """
        The classes [N, H, W] and the logits [N, num_classes, H, W] of float32 images
        [N, C, H, W]; of a classification [N] and [N, num_classes].
        """

    @classmethod
    def from_run(cls, run: str | os.PathLike[str], which: str = 'last', *, device: str = 'cpu:1', threads: int = 0) -> Predictor:
        """
        Of the folder of a run, with the weights of its checkpoint `which`, evaluated by own statistics where its
        configuration says so. Images are to be normalised by its data.mean and data.std. Raises ConfigError for other
        evaluations.
        """

class StepResult:
    """What a step came to."""

    @property
    def loss(self) -> float:
        """The sum of all losses, each a mean over the batch times its weight."""

    @property
    def losses(self) -> list[float]:
        """Each of them, in their order."""

    @property
    def grad_norm(self) -> float:
        """Euclidean, of the whole batch's gradient."""

    def __repr__(self) -> str: ...

def load_weights(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """
    The tensors of a safetensors file, or of one that torch.save has written.
    """

def save_safetensors(path: str | os.PathLike[str], state_dict: Mapping[str, Array]) -> None:
    """Writes a file of weights, whole or not at all."""
