"""A batch in slices, side by side, by one call and one backward."""
import copy
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor, nn

from .._arguments import whole_number
from ..errors import LockstepError
from .batch_norm import SyncBatchNorm
from .convert import convert
from .groups import Group, ThreadGroup, ThreadMember


class DataParallel(nn.Module):
    """`module`, changed by convert(), on `size` slices of each training batch (torch.chunk's), as torch.nn.DataParallel does it on
    GPUs: a replica and a thread for each, whose BatchNorm layers share statistics. synchronize=False: each has its own.

    Replica 0 is `module` itself, and leaves its running statistics. Layers that have a method __data_parallel_replicate__(shared,
    rank) get a call of it on every replica before each step, with one object that all replicas of the layer share. The model
    takes and returns one tensor [N, ...]; random layers (dropout) take their numbers in no fixed order, and autocast belongs inside
    of it. A step goes backward once: retain_graph does not keep its slices. In evaluation it is `module`.
    """

    def __init__(self, module: nn.Module, size: int, synchronize: bool = True):
        super().__init__()
        self.size = whole_number(size, 1, "at least one slice")
        self.module = convert(module, Group()) if synchronize else module

    def forward(self, x: Tensor) -> Tensor:
        """As the module's."""
        parameters = [each for each in self.module.parameters() if each.requires_grad]
        output: Tensor = _SideBySide.apply(self, x, *parameters) if self.training else self.module(x)
        return output

    def replicas(self, count: int) -> List[nn.Module]:
        """The module and copies of it, which have its parameters and buffers of their own."""
        own: Dict[int, Any] = {id(each): each for each in self.module.parameters()}
        made = [self.module, *(copy.deepcopy(self.module, dict(own)) for _ in range(count - 1))]
        for layers in zip(*(replica.modules() for replica in made)):
            shared = SimpleNamespace()
            for rank, layer in enumerate(layers):
                if hasattr(layer, "__data_parallel_replicate__"):
                    layer.__data_parallel_replicate__(shared, rank)
        return made


class _SideBySide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parallel: DataParallel, x: Tensor, *parameters: Tensor) -> Tensor:
        slices = [each.detach().requires_grad_(x.requires_grad) for each in x.chunk(parallel.size)]
        group = ThreadGroup(len(slices))
        replicas = parallel.replicas(len(slices))

        def work(member: ThreadMember) -> Tensor:
            with _meeting(replicas[member.rank], member):
                output: Tensor = replicas[member.rank](slices[member.rank])
            if not isinstance(output, Tensor) or output.dim() == 0:
                got = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
                raise LockstepError(f"expected a tensor [N, ...] from the model, got {got}: let a module around it return one")
            return output

        outputs = group.run(work)
        ctx.group, ctx.outputs, ctx.replicas, ctx.parameters = group, outputs, replicas, parameters
        ctx.inputs = [[*([each] if each.requires_grad else []), *parameters] for each in slices]
        return torch.cat([each.detach() for each in outputs])

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator, unused-ignore]
    def backward(ctx: Any, *gradients: Tensor) -> Tuple[Any, ...]:
        parts = torch.split(gradients[0], [len(each) for each in ctx.outputs])

        def work(member: ThreadMember) -> Tuple[Optional[Tensor], ...]:
            wanted: List[Tensor] = ctx.inputs[member.rank]
            with _meeting(ctx.replicas[member.rank], member):  # checkpointed parts go forward again
                return torch.autograd.grad([ctx.outputs[member.rank]], wanted, [parts[member.rank]], allow_unused=True)

        with _without_hooks(ctx.parameters):
            found = ctx.group.run(work)
        of_x = torch.cat([each[0] for each in found]) if ctx.needs_input_grad[1] else None
        of_parameters = [_sum(of_ranks) for of_ranks in zip(*(each[1 if of_x is not None else 0:] for each in found))]
        return (None, of_x, *of_parameters)


@contextmanager
def _meeting(replica: nn.Module, member: ThreadMember) -> Iterator[None]:
    """While it lasts, the replica's layers meet those of the other ranks."""
    layers = [each for each in replica.modules() if isinstance(each, SyncBatchNorm)]
    for layer in layers:
        layer.group = member
    try:
        yield
    finally:
        for layer in layers:
            layer.group = Group()


@contextmanager
def _without_hooks(parameters: Tuple[Tensor, ...]) -> Iterator[None]:
    """Hooks on a parameter's gradient are for the sum of the ranks, which PyTorch shows them afterwards."""
    hooks = [(each._backward_hooks, dict(each._backward_hooks)) for each in parameters if each._backward_hooks]
    for there, _ in hooks:
        there.clear()
    try:
        yield
    finally:
        for there, kept in hooks:
            there.update(kept)


def _sum(gradients: Tuple[Any, ...]) -> Any:
    """Of the ranks, in their order; None where no rank has one."""
    there = [each for each in gradients if each is not None]
    return torch.stack(there).sum(0) if there else None
