"""Calls of torch.nn.functional.batch_norm inside of a forward that somebody else has written, answered by another function."""
import sys
from dataclasses import dataclass
from functools import wraps
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True)
class BatchNormCall:
    """The arguments of functional.batch_norm, under their names."""
    input: Tensor
    running_mean: Optional[Tensor]
    running_var: Optional[Tensor]
    weight: Optional[Tensor] = None
    bias: Optional[Tensor] = None
    training: bool = False
    momentum: float = 0.1
    eps: float = 1e-5

    def plain(self) -> Tensor:
        """What PyTorch answers."""
        return functional.batch_norm(self.input, self.running_mean, self.running_var, self.weight, self.bias, self.training,
                                     self.momentum, self.eps)


Answer = Callable[[BatchNormCall], Tensor]
Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """`function`, which torch.compile leaves alone: it mistakes what answers a call inside of BatchNormCalls. The compiler is
    not imported for it."""
    @wraps(function)
    def called(*inputs: Any, **named: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*inputs, **named)
        left_alone = getattr(function, "left_alone", None)
        if left_alone is None:
            left_alone = torch._dynamo.disable(function)  # type: ignore[no-untyped-call, unused-ignore]
            setattr(function, "left_alone", left_alone)
        return left_alone(*inputs, **named)
    return called  # type: ignore[return-value]


class BatchNormCalls(TorchFunctionMode):
    """While it lasts, `answer` takes the place of functional.batch_norm in this thread. It may call that itself.

    `count`: how many calls there were.
    """

    def __init__(self, answer: Answer):
        super().__init__()
        self.answer = answer
        self.count = 0

    def __torch_function__(self, func: Any, types: Sequence[Any], args: Tuple[Any, ...] = (),
                           kwargs: Optional[Dict[str, Any]] = None) -> Any:
        named = kwargs or {}
        if func is functional.batch_norm:
            call = BatchNormCall(*args, **named)
        elif func is torch.batch_norm:
            call = _of_torch(*args, **named)
        else:
            return func(*args, **named)
        self.count += 1
        return self.answer(call)


def _of_torch(input: Tensor, weight: Optional[Tensor], bias: Optional[Tensor], running_mean: Optional[Tensor],
              running_var: Optional[Tensor], training: bool, momentum: float, eps: float,
              cudnn_enabled: bool = True) -> BatchNormCall:
    """The same of torch.batch_norm, whose order is another."""
    return BatchNormCall(input, running_mean, running_var, weight, bias, training, momentum, eps)
