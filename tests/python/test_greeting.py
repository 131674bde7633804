"""How ranks find one another at a port that strangers reach, too."""
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")

from lockstep.torch import GroupError  # noqa: E402
from lockstep.torch.greeting import accept_ranks, new_passwords, reach_master  # noqa: E402

HERE = ["127.0.0.1"]
TIMEOUT = 60.0


def rank_bytes(rank):
    return rank.to_bytes(4, "little")


def stranger(port, text=b""):
    connection = socket.create_connection(("127.0.0.1", port))
    try:
        connection.sendall(text)
    except OSError:
        pass
    return connection


def say_slowly(connection, stop):
    try:
        while not stop.wait(0.01):
            connection.send(b"a")
    except OSError:
        pass


def test_strangers_keep_nobody_waiting():
    passwords = new_passwords()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    told = [stranger(port), stranger(port, b"GET / HT"), stranger(port, b"x" * 100000), stranger(port, b"\xff" * 20),
            stranger(port, passwords.question + rank_bytes(0)), stranger(port, passwords.question + rank_bytes(3)),
            stranger(port, passwords.answer + rank_bytes(1)), *(stranger(port) for _ in range(20))]
    slow, stop = stranger(port), threading.Event()
    with ThreadPoolExecutor(4) as threads:
        threads.submit(say_slowly, slow, stop)
        master = threads.submit(accept_ranks, listener, 3, passwords, TIMEOUT)
        workers = {rank: threads.submit(reach_master, HERE, port, rank, passwords, TIMEOUT) for rank in (2, 1)}
        found = master.result()
        assert sorted(found) == [1, 2]
        for rank, worker in workers.items():
            own = worker.result()
            assert own.getsockname() == found[rank].getpeername()
            own.close()
            found[rank].close()
        stop.set()
    for each in [*told, slow]:
        each.close()


def test_a_rank_that_does_not_come_is_named():
    passwords = new_passwords()
    listener = socket.create_server(("127.0.0.1", 0))
    with ThreadPoolExecutor(2) as threads:
        master = threads.submit(accept_ranks, listener, 3, passwords, 1.0)
        one = threads.submit(reach_master, HERE, listener.getsockname()[1], 1, passwords, TIMEOUT).result()
        with pytest.raises(GroupError, match="rank 2 has not connected to rank 0 in 1 s") as error:
            master.result()
    assert error.value.rank == 2
    one.close()


def echo(connection):
    connection.sendall(connection.recv(1 << 16))


@pytest.mark.parametrize("answer", [lambda connection: None, lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request"),
                                    echo, lambda connection: connection.shutdown(socket.SHUT_RDWR)],
                         ids=["silent", "other words", "echo", "hangs up"])
def test_a_worker_knows_whom_it_has_reached(answer):
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        worker = threads.submit(reach_master, HERE, server.getsockname()[1], 1, new_passwords(), 1.0)
        connection, _ = server.accept()
        with connection:
            answer(connection)
            with pytest.raises(GroupError, match="nobody of this group answers"):
                worker.result()


def test_another_address_does_not_hide_the_master():
    passwords = new_passwords()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with socket.create_server(("127.0.0.2", port)), ThreadPoolExecutor(1) as threads:  # silent
        master = threads.submit(accept_ranks, listener, 2, passwords, TIMEOUT)
        began = time.monotonic()
        own = reach_master(["127.0.0.2", "127.0.0.3", "127.0.0.1"], port, 1, passwords, TIMEOUT)
        assert time.monotonic() - began < TIMEOUT  # not one after another's patience
        master.result()[1].close()
    own.close()
