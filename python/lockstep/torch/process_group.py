"""Ranks that are processes of torch.distributed (gloo or another backend).

Rank 0 is the master, as in the program: workers send it what they call and show, it compares the calls and sends all
values back. They talk by TCP connections of their own, because a collective of gloo cannot say who is missing: an end of a
connection names the rank at once, and an error reaches all ranks before anybody leaves. torch.distributed is used once, to
tell the workers where the master listens.
"""
import os
import socket
import threading
import time
import weakref
from contextlib import suppress
from types import TracebackType
from typing import Any, Dict, List, Optional, Tuple, Type, Union

import numpy as np
import torch
from torch import Tensor

from .connections import prepared, receive, send
from .greeting import accept_ranks, new_passwords, own_addresses, reach_master, ready_sockets
from .groups import STALL_TIMEOUT, Call, Group, GroupError, LostGroup, disagreement, where

_LINGER = 10.0  # seconds that the master waits for workers to read of a failure


def is_distributed() -> bool:
    """Whether torch.distributed has been started."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


class ProcessGroup(Group):
    """The ranks of a group of torch.distributed; None: of all processes. Every rank makes it at the same place.

    timeout: seconds until a rank that does not come is an error. As a context manager it tells the others why a rank fails.
    """

    def __init__(self, group: Any = None, timeout: float = STALL_TIMEOUT):
        distributed = torch.distributed
        if not is_distributed():
            raise GroupError("a ProcessGroup needs torch.distributed: call torch.distributed.init_process_group(\"gloo\") "
                             "first", 0)
        self.process_group = group
        self.rank = _rank_in(group)
        self.size = distributed.get_world_size(group)
        self.timeout = timeout
        self._process = os.getpid()
        self._closed = False
        self._failure: Optional[GroupError] = None
        self._last: Dict[int, Call] = {}
        self._sockets: Dict[int, socket.socket] = {}  # the master's by rank, a worker's to rank 0
        listener = socket.create_server(("", 0)) if self.rank == 0 else None
        offer = (own_addresses(), listener.getsockname()[1], new_passwords()) if listener else None
        offers: List[Any] = [None] * self.size
        distributed.all_gather_object(offers, offer, group=group)
        addresses, port, passwords = offers[0]
        if listener:
            self._sockets = accept_ranks(listener, self.size, passwords, timeout)
        else:
            self._sockets = {0: reach_master(addresses, port, self.rank, passwords, timeout)}
        for each in self._sockets.values():
            prepared(each)

    def all_show(self, call: Call, values: Tensor) -> Tensor:
        """See Group.all_show. The values travel by the CPU's memory."""
        self._expect_usable()
        payload = values.detach().cpu().numpy().astype("<f8").tobytes()
        try:
            shown = self._gather(call, payload) if self.rank == 0 else self._ask(call, payload)
        except GroupError as error:
            self._end(error)
            raise
        self._last[self.rank] = call
        array = np.frombuffer(shown, dtype="<f8").astype(np.float64).reshape(self.size, -1)
        return torch.from_numpy(array).to(values.device)

    def close(self) -> None:
        """Leaves the group: ranks that go on get an error. The end of the process does the same."""
        self._closed = True
        for each in self._sockets.values():
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # processes that were forked from this one have it, too, and may stay
            each.close()
        self._sockets.clear()

    def __reduce__(self) -> Tuple[Any, ...]:
        return Processes(self.process_group, self.timeout).__reduce__()

    def __enter__(self) -> "ProcessGroup":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if error is not None and self._failure is None:
            last = where(self._last.get(self.rank))
            self._end(GroupError(f"rank {self.rank} failed: {type(error).__name__}: {error}; {last}", self.rank))
        elif error is None:
            self.close()

    # --- the master ---

    def _gather(self, call: Call, payload: bytes) -> bytes:
        calls, payloads = {0: call}, {0: payload}
        deadline = time.monotonic() + self.timeout
        while len(calls) < self.size:
            waited_for = {self._sockets[rank]: rank for rank in range(1, self.size) if rank not in calls}
            ready = ready_sockets(list(waited_for), [], deadline)
            if not ready:
                rank = min(waited_for.values())
                raise GroupError(f"rank {rank} has not come to the {call}, where rank 0 has waited for {self.timeout:g} s; "
                                 f"{where(self._last.get(rank))}", rank)
            for connection in ready:
                rank = waited_for[connection]
                calls[rank], payloads[rank] = self._take(rank, connection, call)
                self._last[rank] = calls[rank]
        differing = disagreement([calls[rank] for rank in range(self.size)])
        if differing:
            raise GroupError(differing[1], differing[0])
        shown = b"".join(payloads[rank] for rank in range(self.size))
        for rank, connection in self._sockets.items():
            try:
                send(connection, {}, shown)
            except OSError:
                raise self._gone(rank, call) from None
        return shown

    def _take(self, rank: int, connection: socket.socket, call: Call) -> Tuple[Call, bytes]:
        try:
            header, payload = receive(connection)
        except (OSError, ValueError):
            raise self._gone(rank, call) from None
        if "failure" in header:
            raise GroupError(header["failure"], int(header["rank"]))
        return Call(header["layer"], header["phase"], int(header["values"])), payload

    # --- a worker ---

    def _ask(self, call: Call, payload: bytes) -> bytes:
        connection = self._sockets[0]
        # The master has the last word on who is late, and says so; only a master that hangs itself is told from here.
        connection.settimeout(1.5 * self.timeout + 1)
        news = ready_sockets([connection], [], 0.0)  # what is there before a question tells of a failure
        try:
            if not news:
                send(connection, {"layer": call.layer, "phase": call.phase, "values": call.values}, payload)
            header, shown = receive(connection)
        except socket.timeout:
            raise GroupError(f"rank 0 has not answered rank {self.rank} in the {call} for {1.5 * self.timeout + 1:g} s", 0
                             ) from None
        except (OSError, ValueError):
            raise self._gone(0, call) from None
        if "failure" in header:
            raise GroupError(header["failure"], int(header["rank"]))
        return shown

    # --- both ---

    def _expect_usable(self) -> None:
        if self._failure is not None:
            raise GroupError(str(self._failure), self._failure.rank)
        if self._process != os.getpid():
            raise GroupError(f"rank {self.rank} is process {self._process}, and this is process {os.getpid()}, which was forked "
                             f"from it: start processes by torch.multiprocessing.spawn or torchrun, and let each call "
                             f"init_process_group", self.rank)
        if self._closed:
            raise GroupError(f"rank {self.rank} has closed its group; make another ProcessGroup() on all ranks", self.rank)

    def _gone(self, rank: int, call: Call) -> GroupError:
        return GroupError(f"rank {rank} has left (its process ended, or it closed its group) before the {call} on rank "
                          f"{self.rank}; {where(self._last.get(rank, self._last.get(self.rank)))}", rank)

    def _end(self, failure: GroupError) -> None:
        """Keeps the failure, and tells it to the others where they do not know."""
        self._failure = failure
        sockets = list(self._sockets.values())
        self._sockets.clear()
        for connection in sockets:
            try:
                send(connection, {"failure": str(failure), "rank": failure.rank}, b"")
            except OSError:
                pass
        # A connection that is closed with unread data loses what was sent last. So this outlives the error, for a while.
        threading.Thread(target=_close_when_read, args=(sockets, self.rank == 0), daemon=False).start()


def _close_when_read(sockets: List[socket.socket], linger: bool) -> None:
    deadline = time.monotonic() + (_LINGER if linger else 0.0)
    for connection in sockets:
        try:
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            while connection.recv(1 << 16):
                connection.settimeout(max(0.01, deadline - time.monotonic()))
        except OSError:
            pass
        connection.close()


def _rank_in(group: Any) -> int:
    """This process's rank in a group of torch.distributed. Raises GroupError where it has none."""
    distributed = torch.distributed
    outside = distributed.GroupMember.NON_GROUP_MEMBER
    rank = -1 if group is outside or group == outside else int(distributed.get_rank(group))
    if rank < 0:
        own = distributed.get_rank()
        raise GroupError(f"this process is rank {own} of {distributed.get_world_size()}, and not in the process group that it "
                         f"was given: it cannot train with it", own)
    return rank


class Processes(Group):
    """The ranks of a group of torch.distributed (None: all processes), looked for when they first meet. So a layer can be
    made, saved and handed to a process before that has called init_process_group."""

    # One for all layers of a process, as long as torch.distributed's group is there.
    _found: "weakref.WeakKeyDictionary[Any, ProcessGroup]" = weakref.WeakKeyDictionary()
    _lock = threading.Lock()

    def __init__(self, process_group: Any = None, timeout: float = STALL_TIMEOUT):
        self.process_group = process_group
        self.timeout = timeout

    def found(self) -> ProcessGroup:
        """Them. Raises GroupError where there is no torch.distributed."""
        distributed = torch.distributed
        if not is_distributed():
            raise GroupError("a SyncBatchNorm without ranks trains: call torch.distributed.init_process_group(\"gloo\") before, "
                             "or name its ranks by convert(model, group); one rank alone is Group()", 0)
        if self.process_group is not None:
            _rank_in(self.process_group)
        key = distributed.group.WORLD if self.process_group is None else self.process_group
        with self._lock:
            there = self._found.get(key)
            if there is None or there._closed or there._process != os.getpid():
                there = self._found[key] = ProcessGroup(self.process_group, self.timeout)
            return there

    def all_show(self, call: Call, values: Tensor) -> Tensor:
        """See Group.all_show."""
        return self.found().all_show(call, values)

    def __reduce__(self) -> Tuple[Any, ...]:
        if self.process_group is None:
            return Processes, (None, self.timeout)
        return LostGroup, ("were some of the processes of torch.distributed",)


AnyGroup = Union[Group, None, Any]  # the last: a group of torch.distributed


def group_of(group: AnyGroup) -> Group:
    """A Group as it is, and one of torch.distributed as its ranks; None: all processes."""
    return group if isinstance(group, Group) else Processes(group)
