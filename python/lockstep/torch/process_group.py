"""Ranks that are processes of torch.distributed (gloo or another backend).

Rank 0 is the master, as in the program: workers send it what they call and show, it compares the calls and sends all
values back. They talk by TCP connections of their own, because a collective of gloo cannot say who is missing: an end of a
connection names the rank at once, and an error reaches all ranks before anybody leaves. torch.distributed is used once, to
tell the workers where the master listens.
"""
import json
import select
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Any, Dict, List, Optional, Tuple, Type

import numpy as np
import torch
from torch import Tensor

from .greeting import accept_ranks, new_passwords, own_addresses, reach_master
from .groups import STALL_TIMEOUT, Call, Group, GroupError, disagreement, where

_LINGER = 10.0  # seconds that the master waits for workers to read of a failure
_LENGTHS = struct.Struct("<II")


class ProcessGroup(Group):
    """The ranks of a group of torch.distributed; None: of all processes. Every rank makes it at the same place.

    timeout: seconds until a rank that does not come is an error. As a context manager it tells the others why a rank fails.
    """

    def __init__(self, group: Any = None, timeout: float = STALL_TIMEOUT):
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            raise GroupError("a ProcessGroup needs torch.distributed: call torch.distributed.init_process_group(\"gloo\") "
                             "first", 0)
        self.rank = distributed.get_rank(group)
        self.size = distributed.get_world_size(group)
        self.timeout = timeout
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
            _prepare(each)

    def all_show(self, call: Call, values: Tensor) -> Tensor:
        """See Group.all_show. The values travel by the CPU's memory."""
        if self._failure is not None:
            raise GroupError(str(self._failure), self._failure.rank)
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
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()

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
            ready, _, _ = select.select(list(waited_for), [], [], max(0.0, deadline - time.monotonic()))
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
                _send(connection, {}, shown)
            except OSError:
                raise self._gone(rank, call) from None
        return shown

    def _take(self, rank: int, connection: socket.socket, call: Call) -> Tuple[Call, bytes]:
        try:
            header, payload = _receive(connection)
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
        try:
            # What is there before a question is news of a failure.
            if not select.select([connection], [], [], 0)[0]:
                _send(connection, {"layer": call.layer, "phase": call.phase, "values": call.values}, payload)
            header, shown = _receive(connection)
        except socket.timeout:
            raise GroupError(f"rank 0 has not answered rank {self.rank} in the {call} for {1.5 * self.timeout + 1:g} s", 0
                             ) from None
        except (OSError, ValueError):
            raise self._gone(0, call) from None
        if "failure" in header:
            raise GroupError(header["failure"], int(header["rank"]))
        return shown

    # --- both ---

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
                _send(connection, {"failure": str(failure), "rank": failure.rank}, b"")
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


def _prepare(connection: socket.socket) -> None:
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _send(connection: socket.socket, header: Dict[str, Any], payload: bytes) -> None:
    text = json.dumps(header).encode()
    connection.sendall(_LENGTHS.pack(len(text), len(payload)) + text + payload)


def _receive(connection: socket.socket) -> Tuple[Dict[str, Any], bytes]:
    """Raises OSError where the connection ends, ValueError for what is no message."""
    lengths = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size))
    header: Dict[str, Any] = json.loads(_exactly(connection, lengths[0]))
    return header, _exactly(connection, lengths[1])


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        part = connection.recv(count - len(received))
        if not part:
            raise ConnectionError("the connection has ended")
        received += part
    return bytes(received)
