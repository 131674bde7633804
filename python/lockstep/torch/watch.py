"""How far statistics of a few images are from those of many, layer by layer, while a network trains."""
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Tuple, Type

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import missing
from ..table import Table
from .batch_norm import OwnStatistics
from .noise import noise_of
from .passes import moments_by_image


class Watch:
    """Records in every `every`-th training step what statistics of `images_per_device` images of the batch would miss in each
    BatchNorm layer: the lens's figures, by hooks, in a training as it is.

        with Watch(model, images_per_device=1) as watch:
            train(model)
        print(watch.table)

    A step is a forward pass of `model` in training. Batches need two sets of so many images; others are passed by. Nothing
    that the network computes is changed.
    """

    def __init__(self, model: nn.Module, images_per_device: int = 1, every: int = 50):
        if images_per_device < 1 or every < 1:
            raise ValueError(f"expected at least one image per device and one step, got {images_per_device} and {every}")
        self.images_per_device = images_per_device
        self.every = every
        self.steps = 0
        self._records: List[Dict[str, Any]] = []
        self._hooks: List[Any] = [model.register_forward_pre_hook(self._count)]
        for name, layer in model.named_modules():
            if isinstance(layer, _BatchNorm) and not isinstance(layer, OwnStatistics):
                self._hooks.append(layer.register_forward_pre_hook(self._looking_at(name)))

    @property
    def table(self) -> Table:
        """A row for each step and call of a layer: step, and the fields of LayerNoise."""
        return Table.from_records(self._records)

    def plot(self, ax: Any = None) -> Any:
        """Draws the share of the variance that is missed over the steps, a line for each layer, by matplotlib. Returns the axes.

        Raises MissingPackageError without matplotlib.
        """
        if ax is None:
            try:
                import matplotlib.pyplot as pyplot
            except ImportError:
                raise missing("matplotlib", "A figure") from None
            ax = pyplot.subplots()[1]
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

    def _count(self, model: nn.Module, inputs: Tuple[Any, ...]) -> None:
        if model.training:
            self.steps += 1

    def _looking_at(self, name: str) -> Callable[[nn.Module, Tuple[Tensor, ...]], None]:
        def look(layer: nn.Module, inputs: Tuple[Tensor, ...]) -> None:
            x = inputs[0]
            # The first step is looked at, too: initial weights.
            if not layer.training or (self.steps - 1) % self.every or len(x) < 2 * self.images_per_device:
                return
            assert isinstance(layer, _BatchNorm)
            noise = noise_of(name, moments_by_image(x.detach()), self.images_per_device, layer.eps)
            self._records.append({"step": self.steps, **noise.to_dict()})
        return look
