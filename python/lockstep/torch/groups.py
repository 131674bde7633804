"""Ranks that meet: threads of one process here, processes in process_group.py. Who uses a group does not ask which it is.

The rule: whatever goes wrong on one rank is an error on all of them, which names the rank and the layer. Nothing hangs.
"""
import ctypes
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type, TypeVar

import torch
from torch import Tensor

from .._arguments import whole_number
from ..errors import LockstepError

Result = TypeVar("Result")

STALL_TIMEOUT = 60.0  # seconds, as run.stall_timeout of the program


class GroupError(LockstepError):
    """A rank failed, left, did not come in time, or called another layer than the others. `rank`: which one."""

    def __init__(self, message: str, rank: int):
        super().__init__(message)
        self.rank = rank

    def __reduce__(self) -> Tuple[Any, ...]:
        return type(self), (str(self), self.rank)


@dataclass(frozen=True)
class Call:
    """What a rank meets the others for: one pass of one layer. They must agree on all of it."""
    layer: str
    phase: str  # "forward" or "backward"
    values: int  # how many are shown

    def __str__(self) -> str:
        return f"{self.phase} of {self.layer}"


class Group:
    """The ranks that share statistics, as one of them sees them. This one is alone."""

    rank = 0
    size = 1

    def all_show(self, call: Call, values: Tensor) -> Tensor:
        """Shows `values` [n] of float64 to all ranks; returns those of all, [ranks, n], in their order.

        Raises GroupError on every rank where one is missing, failed, or makes another call.
        """
        return values.unsqueeze(0)

    def __deepcopy__(self, memo: Dict[int, Any]) -> "Group":
        return self  # a copy of a layer meets the same ranks


class LostGroup(Group):
    """What a file has of ranks that were in another process, and that nobody can find again."""

    def __init__(self, ranks: str):
        self.ranks = ranks

    def all_show(self, call: Call, values: Tensor) -> Tensor:
        """Raises GroupError."""
        raise GroupError(f"{call.layer} was loaded or copied from another process, and its ranks {self.ranks}: give it ranks "
                         f"again by convert(model, group), or make it plain by revert(model)", 0)

    def __reduce__(self) -> Tuple[Any, ...]:
        return LostGroup, (self.ranks,)


def disagreement(calls: Sequence[Call]) -> Optional[Tuple[int, str]]:
    """The first rank whose call is not rank 0's, and a sentence about it; None where all agree."""
    for rank, call in enumerate(calls):
        if call == calls[0]:
            continue
        if (call.layer, call.phase) == (calls[0].layer, calls[0].phase):
            return rank, (f"rank {rank} shows {call.values} values in the {call}, rank 0 {calls[0].values}: their layers "
                          f"differ in channels")
        return rank, (f"rank {rank} is in the {call}, rank 0 in the {calls[0]}: one of them skipped or repeated a layer; "
                      f"all ranks must call the same layers in the same order")
    return None


def where(last: Optional[Call]) -> str:
    """Where a rank was seen last, in a clause."""
    return f"it was last in the {last}" if last else "it has not been in any layer"


class ThreadGroup:
    """Ranks that are threads of this process, each with a replica of the network: `convert(replica, group.member(rank))`.

    timeout: seconds until a rank that does not come is an error.
    """

    def __init__(self, size: int, timeout: float = STALL_TIMEOUT):
        self.size = whole_number(size, 1, "a group of at least one rank")
        self.timeout = timeout
        self._condition = threading.Condition()
        self._posts: Dict[int, Tuple[Call, Tensor]] = {}
        self._last: Dict[int, Call] = {}
        self._left: List[int] = []
        self._shown = torch.empty(0)
        self._meetings = 0
        self._failure: Optional[GroupError] = None
        self._over = False
        self._threads: List[threading.Thread] = []

    def member(self, rank: int) -> "ThreadMember":
        """The group as `rank` sees it; used by the thread of that rank. As a context manager it tells the others when the
        thread fails or is done."""
        if not 0 <= rank < self.size:
            raise ValueError(f"expected a rank from 0 to {self.size - 1}, got {rank}")
        return ThreadMember(self, rank)

    def run(self, function: Callable[["ThreadMember"], Result]) -> List[Result]:
        """Calls `function(member)` in a thread for each rank, and returns what they return, in the order of the ranks.

        Raises what the first rank that failed has raised.
        """
        self._over, self._left = False, []
        if not any(thread.is_alive() for thread in self._threads):  # of a run that failed
            self._failure = None
            self._posts.clear()
            self._last.clear()
        results: List[Any] = [None] * self.size
        errors: Dict[int, BaseException] = {}

        def work(rank: int) -> None:
            try:
                with self.member(rank) as member:
                    results[rank] = function(member)
            except BaseException as error:
                errors[rank] = error

        threads = [threading.Thread(target=work, args=(rank,), name=f"rank {rank}", daemon=True) for rank in range(self.size)]
        self._threads = threads
        try:
            for thread in threads:
                thread.start()
            while not errors and any(thread.is_alive() for thread in threads):
                time.sleep(0.001)
        except BaseException as error:  # Ctrl-C reaches the main thread alone
            self._stop(threads, type(error))
            raise
        self._over = True
        if errors:
            deadline = time.monotonic() + self.timeout  # what is not in a layer need not notice
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            first = self._failure.rank if self._failure else -1
            raise errors.get(first, next(iter(errors.values())))
        return results

    def _stop(self, threads: List[threading.Thread], kind: Type[BaseException]) -> None:
        """Ends the threads: where they meet, and else where they next run Python."""
        with self._condition:
            self._fail(-1, f"the training was stopped ({kind.__name__})")
        for thread in threads:
            if thread.ident is not None and thread.is_alive():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))
        deadline = time.monotonic() + self.timeout
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def fail(self, rank: int, error: BaseException) -> None:
        """Makes `error` of `rank` an error on all ranks, unless there is one already."""
        with self._condition:
            self._fail(rank, f"rank {rank} failed: {type(error).__name__}: {error}; {where(self._last.get(rank))}")

    def leave(self, rank: int) -> None:
        """Says that `rank` comes no more: who waits for it, or comes later, gets an error."""
        with self._condition:
            self._left.append(rank)
            self._check_left()

    def all_show(self, rank: int, call: Call, values: Tensor) -> Tensor:
        """As Group.all_show, for `rank`."""
        with self._condition:
            if self._failure is None:
                if self._over and self.size > 1:  # a backward, or what a checkpointed network computes again in it
                    raise GroupError(f"rank {rank} is in the {call}, and run() has ended: call backward in the function that run() "
                                     f"calls, where the other ranks come to it, too", rank)
                self._posts[rank] = (call, values)
                self._last[rank] = call
                self._check_left()
                self._meet(rank, call)
            if self._failure is not None:
                raise GroupError(str(self._failure), self._failure.rank)
            return self._shown  # nobody overwrites it before this rank comes again

    def _meet(self, rank: int, call: Call) -> None:
        meeting = self._meetings
        if len(self._posts) == self.size:
            posts = [self._posts[each] for each in range(self.size)]
            differing = disagreement([posted for posted, _ in posts])
            if differing:
                self._fail(*differing)
                return
            self._shown = torch.stack([shown for _, shown in posts])
            self._posts.clear()
            self._meetings += 1
            self._condition.notify_all()
            return
        came = self._condition.wait_for(lambda: self._meetings != meeting or self._failure is not None, self.timeout)
        if not came:
            missing = next(each for each in range(self.size) if each not in self._posts)
            self._fail(missing, f"rank {missing} has not come to the {call}, where rank {rank} has waited for "
                                f"{self.timeout:g} s; {where(self._last.get(missing))}")

    def _check_left(self) -> None:
        gone = next((rank for rank in self._left if rank not in self._posts), None)
        if gone is None or not self._posts:
            return
        waiting, (call, _) = next(iter(self._posts.items()))
        self._fail(gone, f"rank {gone} has left, and rank {waiting} waits for it in the {call}; {where(self._last.get(gone))}. "
                         f"Give every rank as many batches, if need be empty ones")

    def _fail(self, rank: int, message: str) -> None:
        if self._failure is None:
            self._failure = GroupError(message, rank)
        self._condition.notify_all()


class ThreadMember(Group):
    """A ThreadGroup as one of its ranks sees it."""

    def __init__(self, group: ThreadGroup, rank: int):
        self.group = group
        self.rank = rank
        self.size = group.size

    def all_show(self, call: Call, values: Tensor) -> Tensor:
        """See Group.all_show."""
        return self.group.all_show(self.rank, call, values)

    def __reduce__(self) -> Tuple[Any, ...]:
        return LostGroup, ("were threads of that process",)

    def __enter__(self) -> "ThreadMember":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if error is not None:
            self.group.fail(self.rank, error)
        else:
            self.group.leave(self.rank)
