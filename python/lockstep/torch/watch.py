"""How far statistics of a few images are from those of many, layer by layer, while a network trains."""
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Tuple, Type, Union

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from .._arguments import whole_number
from ..figures import axes_of
from ..table import Table
from .batch_norm import OwnStatistics
from .diagnosis import count_of
from .hooks import Look, before_forward, tensors_of
from .noise import noise_of
from .passes import moments_by_image


class Watch:
    """Records in every `every`-th training step what statistics of `images_per_device` images of the batch would miss in each
    BatchNorm layer: the lens's figures, by hooks, in a training as it is.

        with Watch(model, images_per_device=1) as watch:
            train(model)
        print(watch.table)

    A step is a forward pass of `model` in training, unless counts=False: then add to `steps` before each. Batches need two sets
    of so many images; others are passed by, and layers with other rows than images. Nothing that the network computes is changed. One that torch.compile
    has compiled calls no later hooks: make the Watch before its first call.
    """

    def __init__(self, model: nn.Module, images_per_device: int = 1, every: int = 50, counts: bool = True):
        self.images_per_device = whole_number(images_per_device, 1, "at least one image per device")
        self.every = whole_number(every, 1, "every=50, a whole number of at least 1")
        self.steps = 0
        self._records: List[Dict[str, Any]] = []
        self._counts = counts
        self._images = 0  # of the pass
        self._hooks: List[Any] = [before_forward(model, self._begin)]
        for name, layer in model.named_modules():
            if isinstance(layer, _BatchNorm) and not isinstance(layer, OwnStatistics):
                self._hooks.append(before_forward(layer, self._looking_at(name)))

    @property
    def table(self) -> Table:
        """A row for each step and call of a layer: step, and the fields of LayerNoise."""
        return Table.from_records(self._records)

    def __str__(self) -> str:
        if not self._records:
            return (f"nothing was seen (steps: {self.steps}): no BatchNorm layer in training saw two sets of "
                    f"{count_of(self.images_per_device)}, or torch.compile had compiled the network before; then make the Watch before "
                    f"its first call")
        return f"variance missed by {count_of(self.images_per_device)} per device, in percent\n{self.summary}"

    @property
    def summary(self) -> Table:
        """A row for each layer: the share of its variance that is missed, in percent, when it was first looked at, when last, and
        at most."""
        missed: Dict[str, List[float]] = {}
        for record in self._records:
            missed.setdefault(record["layer"], []).append(100 * record["missed"])
        return Table.from_records([{"layer": name, "first": of_layer[0], "last": of_layer[-1], "most": max(of_layer)}
                                   for name, of_layer in missed.items()])

    def plot(self, ax: Any = None) -> Any:
        """Draws the share of the variance that is missed over the steps, a line for each layer, by matplotlib. Returns the axes.

        Raises MissingPackageError without matplotlib.
        """
        ax = axes_of(ax)
        for name in dict.fromkeys(record["layer"] for record in self._records):
            of_layer = [record for record in self._records if record["layer"] == name]
            ax.plot([record["step"] for record in of_layer], [100 * record["missed"] for record in of_layer], label=name)
        ax.set_xlabel("step")
        ax.set_ylabel(f"variance missed by {self.images_per_device} per device, %")
        ax.legend(fontsize="small")
        return ax

    def close(self) -> None:
        """Takes the hooks off."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def _begin(self, model: nn.Module, inputs: Tuple[Any, ...], named: Dict[str, Any]) -> None:
        first = next(tensors_of([inputs, named]), None)
        self._images = len(first) if first is not None and first.dim() > 0 else 0
        if model.training and self._counts:
            self.steps += 1

    def _looking_at(self, name: str) -> Look:
        def look(layer: nn.Module, inputs: Tuple[Any, ...], named: Dict[str, Any]) -> None:
            x = inputs[0] if inputs else named.get("input")
            # The first step is looked at, too: initial weights.
            if x is None or not layer.training or (self.steps - 1) % self.every or len(x) < 2 * self.images_per_device:
                return
            if self._images not in (0, len(x)):  # which rows are an image's, nobody can tell
                return
            assert isinstance(layer, _BatchNorm)
            noise = noise_of(name, moments_by_image(x.detach()), self.images_per_device, layer.eps)
            self._records.append({"step": self.steps, **noise.to_dict()})
        return look


class WatchCallback:
    """Watch for Lightning: Trainer(callbacks=[WatchCallback()]). A step is a training batch. At the end it prints the summary, and
    draws into the file `figure`, if given. `watch` is there from the beginning of the training on. Lightning is not imported."""

    state_key = _legacy_state_key = "lockstep.torch.WatchCallback"

    def __init__(self, images_per_device: int = 1, every: int = 50, figure: Union[str, Path, None] = None):
        self.images_per_device = images_per_device
        self.every = every
        self.figure = figure
        self.watch: Optional[Watch] = None

    def on_train_start(self, trainer: Any, module: nn.Module) -> None:
        """Begins."""
        self.watch = Watch(module, self.images_per_device, self.every, counts=False)

    def on_train_batch_start(self, trainer: Any, module: nn.Module, batch: Any, index: int) -> None:
        """Counts."""
        if self.watch is not None:
            self.watch.steps += 1

    def on_train_end(self, trainer: Any, module: nn.Module) -> None:
        """Says what was found, on the first rank."""
        if self.watch is None:
            return
        self.watch.close()
        if getattr(trainer, "is_global_zero", True):
            print(self.watch)
            if self.figure is not None:
                self.watch.plot().figure.savefig(self.figure)

    def on_exception(self, trainer: Any, module: nn.Module, error: BaseException) -> None:
        """Takes the hooks off."""
        if self.watch is not None:
            self.watch.close()

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Lightning's other calls, which do nothing."""
        if name.startswith("on_") or name in ("setup", "teardown", "state_dict", "load_state_dict"):
            return lambda *_, **__: None
        raise AttributeError(name)
