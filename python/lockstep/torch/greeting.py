"""How the ranks of a group find one another at a port that anybody may connect to: a port scan, a program with the wrong address.

Strangers are heard side by side with the ranks, each for a moment and a few bytes, and keep nobody waiting. Ranks say what
only they know first, of a fixed size, and the master answers by what only it knows.
"""
import secrets
import selectors
import socket
import struct
import time
from typing import Dict, List, NamedTuple, Optional

from .groups import GroupError

_HEARING = 5.0  # seconds that a connection may take to say who it is
_MOST_UNKNOWN = 128  # connections that have not said so
_RANK = struct.Struct("<I")


class Passwords(NamedTuple):
    """What only ranks of this group know: they say `question`, the master `answer`."""
    question: bytes
    answer: bytes


def new_passwords() -> Passwords:
    """Of 16 bytes each."""
    return Passwords(secrets.token_bytes(16), secrets.token_bytes(16))


def own_addresses() -> List[str]:
    """Where other processes may reach this one, the surest last."""
    try:
        own = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)})
    except OSError:
        own = []
    return [*own, "127.0.0.1"]


class _Connection:
    """A connection whose other end is not known yet."""

    def __init__(self, own: socket.socket, wanted: int, until: float):
        self.socket = own
        self.until = until
        self._wanted = wanted
        self.heard = b""

    def receive(self) -> bool:
        """Whether it goes on."""
        try:
            part = self.socket.recv(self._wanted - len(self.heard))
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.heard += part
        return bool(part)

    @property
    def complete(self) -> bool:
        return len(self.heard) == self._wanted


def accept_ranks(listener: socket.socket, size: int, passwords: Passwords, timeout: float) -> Dict[int, socket.socket]:
    """The connections of ranks 1 to size - 1. Closes the listener. Raises GroupError naming a rank that has not come."""
    with listener:
        return _Door(listener, size, passwords).wait(timeout)


class _Door:
    def __init__(self, listener: socket.socket, size: int, passwords: Passwords):
        listener.setblocking(False)
        self._listener = listener
        self._size = size
        self._passwords = passwords
        self._known: Dict[int, socket.socket] = {}
        self._unknown: List[_Connection] = []

    def wait(self, timeout: float) -> Dict[int, socket.socket]:
        deadline = time.monotonic() + timeout
        try:
            while len(self._known) < self._size - 1:
                if time.monotonic() >= deadline:
                    missing = next(rank for rank in range(1, self._size) if rank not in self._known)
                    raise GroupError(f"rank {missing} has not connected to rank 0 in {timeout:g} s", missing)
                self._serve(deadline)
        except BaseException:
            for each in self._known.values():
                each.close()
            raise
        finally:
            for unknown in self._unknown:
                unknown.socket.close()
        return self._known

    def _serve(self, deadline: float) -> None:
        until = min([deadline, *(each.until for each in self._unknown)])
        for ready in ready_sockets([self._listener, *(each.socket for each in self._unknown)], [], until):
            if ready is self._listener:
                self._let_in()
            else:
                self._hear(next(each for each in self._unknown if each.socket is ready))
        for late in [each for each in self._unknown if time.monotonic() >= each.until]:
            self._turn_away(late)

    def _let_in(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone again, or there are too many
            if self._unknown:
                self._turn_away(self._unknown[0])
            return
        connection.setblocking(False)
        if len(self._unknown) == _MOST_UNKNOWN:
            self._turn_away(self._unknown[0])
        self._unknown.append(_Connection(connection, len(self._passwords.question) + _RANK.size, time.monotonic() + _HEARING))

    def _hear(self, connection: _Connection) -> None:
        if not connection.receive():
            self._turn_away(connection)
        elif connection.complete:
            rank = self._rank_of(connection.heard)
            if rank is None or not _said(connection.socket, self._passwords.answer):
                self._turn_away(connection)
                return
            self._unknown.remove(connection)
            self._known[rank] = connection.socket

    def _rank_of(self, heard: bytes) -> Optional[int]:
        question, rank = heard[:-_RANK.size], int(_RANK.unpack(heard[-_RANK.size:])[0])
        expected = 0 < rank < self._size and rank not in self._known
        return rank if secrets.compare_digest(question, self._passwords.question) and expected else None

    def _turn_away(self, connection: _Connection) -> None:
        self._unknown.remove(connection)
        connection.socket.close()


def reach_master(addresses: List[str], port: int, rank: int, passwords: Passwords, timeout: float) -> socket.socket:
    """A connection to rank 0, which listens at one of the addresses: all are tried side by side. Raises GroupError."""
    deadline = time.monotonic() + timeout
    calling = {connection: address for address, connection in ((each, _dial(each, port)) for each in addresses)}
    asked: Dict[socket.socket, _Connection] = {}
    greeting = passwords.question + _RANK.pack(rank)
    try:
        while (calling or asked) and time.monotonic() < deadline:
            for ready in ready_sockets(list(asked), list(calling), deadline):
                if ready in calling:
                    del calling[ready]
                    if _said(ready, greeting):
                        asked[ready] = _Connection(ready, len(passwords.answer), deadline)
                    else:
                        ready.close()
                    continue
                connection = asked[ready]
                goes_on = connection.receive()
                if connection.complete and secrets.compare_digest(connection.heard, passwords.answer):
                    del asked[ready]
                    return ready
                if connection.complete or not goes_on:
                    del asked[ready]
                    ready.close()
    finally:
        for each in [*calling, *asked]:
            each.close()
    raise GroupError(f"rank {rank} cannot reach rank 0 at port {port} of {', '.join(addresses)}: nobody of this group answers "
                     f"there; a firewall may block it", 0)


def _dial(address: str, port: int) -> socket.socket:
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setblocking(False)
    connection.connect_ex((address, port))
    return connection


def _said(connection: socket.socket, text: bytes) -> bool:
    """Whether so few bytes could be sent, which no connection that stands keeps waiting."""
    try:
        return connection.send(text) == len(text)
    except OSError:
        return False


def ready_sockets(readers: List[socket.socket], writers: List[socket.socket], until: float) -> List[socket.socket]:
    """Those that can be read, or written; none where none could until then. Unlike select.select it takes sockets of any number."""
    with selectors.DefaultSelector() as selector:
        for each in readers:
            selector.register(each, selectors.EVENT_READ)
        for each in writers:
            selector.register(each, selectors.EVENT_WRITE)
        return [key.fileobj for key, _ in selector.select(max(0.0, until - time.monotonic()))]  # type: ignore[misc]
