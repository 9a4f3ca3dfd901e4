"""Allocate ports of 127.0.0.1, keep them over restarts, and talk to servers on them.

Ports are taken below the kernel's ephemeral range, so that no outgoing connection of this machine
can take one between our choice and the server's bind, nor during a server's restart. To exclude
other local systems of this user, each port is held until this process ends, by a lock on the byte
of its number in a file that all of them open (fcntl(2), advisory record locking).
"""

import fcntl
import functools
import os
import random
import socket
import tempfile
import threading
from pathlib import Path

import orjson

from hamilocal.supervisor.plan import NotReadyError, ServerError

LOOPBACK = "127.0.0.1"
_FIRST, _LAST = 20000, 32000  # Linux hands out 32768-60999 by default
_ATTEMPTS = 200
_PROBE_TIMEOUT_S = 1.0

_given: set[int] = set()
_lock = threading.Lock()


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1, reserved for this process while it lives.

    Raises:
        ServerError: 200 random ports of 20000-32000 were all taken.
    """
    choose = random.SystemRandom()
    with _lock:
        for _ in range(_ATTEMPTS):
            port = choose.randint(_FIRST, _LAST)
            if port not in _given and _hold(port) and is_free(port):
                _given.add(port)
                return port
    raise ServerError(f"no free TCP port between {_FIRST} and {_LAST} on {LOOPBACK}")


def stable_ports(names: tuple[str, ...], path: Path) -> dict[str, int]:
    """Return a port per name, kept in the file `path` so that a kubeconfig stays valid.

    A name keeps its port unless another process listens there.
    """
    try:
        known: dict[str, int] = orjson.loads(path.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        known = {}
    ports: dict[str, int] = {}
    for name in names:
        port = known.get(name, 0)
        while not port or port in ports.values() or not (_hold(port) and is_free(port)):
            port = free_port()
        ports[name] = port
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(orjson.dumps(known | ports))
    partial.replace(path)
    return ports


def _hold(port: int) -> bool:
    """Reserve the port for this process; return False if another process has it."""
    try:
        fcntl.lockf(_held_ports(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    return True


@functools.cache
def _held_ports() -> int:
    """Return the file of locks, which stays open because closing it would free all ports."""
    path = Path(tempfile.gettempdir()) / f"hami-ports-{os.getuid()}"
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise ServerError(
            f"{path} holds the ports of local systems but can't be opened: {exc}"
        ) from exc


def is_free(port: int) -> bool:
    """Return whether no process listens on this TCP port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def connect(port: int) -> socket.socket:
    """Return a connection to a port of 127.0.0.1, for one short question.

    Raises:
        NotReadyError: nothing answers there.
    """
    try:
        return socket.create_connection((LOOPBACK, port), timeout=_PROBE_TIMEOUT_S)
    except OSError as exc:
        raise NotReadyError(f"nothing answers on {LOOPBACK}:{port} ({exc})") from exc


def exchange(connection: socket.socket, request: bytes, *, at_least: int) -> bytes:
    """Send `request`, and return the answer once it has `at_least` bytes.

    Raises:
        NotReadyError: there is no such answer within a second.
    """
    try:
        connection.sendall(request)
        received = b""
        while len(received) < at_least:
            chunk = connection.recv(8192)
            if not chunk:
                raise NotReadyError("the server closed the connection without an answer")
            received += chunk
    except OSError as exc:
        raise NotReadyError(f"no answer within {_PROBE_TIMEOUT_S:g} s ({exc})") from exc
    return received
