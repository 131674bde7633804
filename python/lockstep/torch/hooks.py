"""What is attached to a network of somebody else's, or changed in it for a while."""
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Tuple

from torch import Tensor, nn

Look = Callable[[nn.Module, Tuple[Any, ...], Dict[str, Any]], None]


class OwnHook:
    """A hook for one network: copies of that, and files, have one that does nothing."""

    def __init__(self, look: Optional[Look] = None):
        self.look = look

    def __call__(self, module: nn.Module, inputs: Tuple[Any, ...], named: Optional[Dict[str, Any]] = None) -> None:
        if self.look is not None:
            self.look(module, inputs, named or {})

    def __reduce__(self) -> Tuple[Any, ...]:
        return OwnHook, ()


def before_forward(module: nn.Module, look: Look) -> Any:
    """Calls `look(module, inputs, named inputs)` before each forward pass; before PyTorch 2 without the named ones. Returns the
    handle that takes it off."""
    try:
        return module.register_forward_pre_hook(OwnHook(look), with_kwargs=True)
    except TypeError:
        return module.register_forward_pre_hook(OwnHook(look))


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """While it lasts, the model may be put to training and to evaluation; then its parts are as they were."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        model.train(modes[model])  # for modules whose train() does more
        for module, training in modes.items():
            module.training = training


def tensors_of(given: Any) -> Iterator[Tensor]:
    """Those in what a module is called with."""
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, Mapping):
        yield from tensors_of(list(given.values()))
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from tensors_of(each)
