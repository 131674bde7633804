"""Connections of processes by TCP, and the messages on them: a header of JSON, and bytes."""
import json
import socket
import struct
from typing import Any, Dict, Tuple

_LENGTHS = struct.Struct("<II")


def prepared(connection: socket.socket) -> socket.socket:
    """It, as messages want it."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return connection


def send(connection: socket.socket, header: Dict[str, Any], payload: bytes) -> None:
    text = json.dumps(header).encode()
    connection.sendall(_LENGTHS.pack(len(text), len(payload)) + text + payload)


def receive(connection: socket.socket) -> Tuple[Dict[str, Any], bytes]:
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
