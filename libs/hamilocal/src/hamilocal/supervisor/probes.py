"""Is a server ready? Asked in the server's own protocol, on one short connection.

Each function returns when the server serves and raises `NotReadyError` otherwise; none waits longer
than a second.
"""

import json
import socket
import ssl
import struct
import urllib.error
import urllib.request
from pathlib import Path

from hamilocal.supervisor.plan import NotReadyError
from hamilocal.supervisor.ports import LOOPBACK

_TIMEOUT_S = 1.0
_PROTOCOL_3 = 196608  # PostgreSQL, protocol version 3.0: major version in the upper half


def postgres_ready(port: int, *, user: str, database: str) -> None:
    """PostgreSQL takes a start-up packet (while it recovers it answers with error 57P03)."""
    parameters = f"user\0{user}\0database\0{database}\0\0".encode()
    packet = struct.pack("!ii", 8 + len(parameters), _PROTOCOL_3) + parameters
    with _connected(port) as connection:
        reply = _exchange(connection, packet, at_least=5)
        # 'R' asks for authentication or grants it: only a server that takes sessions gets this far.
        if reply[:1] != b"R":
            text = reply[5:].split(b"\0")
            message = next((field[1:] for field in text if field[:1] == b"M"), b"no answer")
            raise NotReadyError(f"PostgreSQL on port {port}: {message.decode(errors='replace')}")
        connection.sendall(struct.pack("!ci", b"X", 4))


def nats_ready(port: int, *, server_name: str) -> None:
    """The NATS server with this name greets with an INFO line that offers JetStream."""
    with _connected(port) as connection:
        received = b""
        while b"\r\n" not in received:
            received += _exchange(connection, b"", at_least=1)
    verb, _, body = received.partition(b" ")
    if verb != b"INFO":
        raise NotReadyError(f"port {port} answers, but not as a NATS server")
    info = json.loads(body.partition(b"\r\n")[0])
    if info.get("server_name") != server_name:
        raise NotReadyError(
            f"port {port} belongs to another NATS server, {info.get('server_name')}"
        )
    if not info.get("jetstream"):
        raise NotReadyError(f"the NATS server on port {port} runs without JetStream")


def redis_ready(port: int, *, folder: str, password: str | None = None) -> None:
    """The server that keeps its files in `folder` answers commands (while it loads: LOADING)."""
    login = "" if password is None else f"AUTH {password}\r\n"
    with _connected(port) as connection:
        reply = _exchange(connection, f"{login}CONFIG GET dir\r\nPING\r\n".encode(), at_least=5)
        # An error answer begins with "-"; the last answer of a healthy server is the one to PING.
        while not reply.endswith(b"+PONG\r\n") and b"\r\n-" not in reply and reply[:1] != b"-":
            reply += _exchange(connection, b"", at_least=1)
    if not reply.endswith(b"+PONG\r\n"):
        raise NotReadyError(f"Redis on port {port}: {reply.decode(errors='replace').strip()}")
    if folder.encode() not in reply.split(b"\r\n"):
        raise NotReadyError(f"port {port} belongs to another Redis server")


def http_ready(url: str, *, ca_file: Path | None = None, verify: bool = True) -> None:
    """GET `url` answers 200."""
    context = None
    if url.startswith("https:"):
        context = ssl.create_default_context(cafile=ca_file)
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=context) as answer:
            answer.read()
    except urllib.error.HTTPError as exc:
        exc.close()
        raise NotReadyError(f"{url}: {exc}") from exc
    except OSError as exc:
        raise NotReadyError(f"{url}: {exc}") from exc


def _connected(port: int) -> socket.socket:
    try:
        return socket.create_connection((LOOPBACK, port), timeout=_TIMEOUT_S)
    except OSError as exc:
        raise NotReadyError(f"nothing answers on {LOOPBACK}:{port} ({exc})") from exc


def _exchange(connection: socket.socket, request: bytes, *, at_least: int) -> bytes:
    try:
        connection.sendall(request)
        received = b""
        while len(received) < at_least:
            chunk = connection.recv(8192)
            if not chunk:
                raise NotReadyError("the server closed the connection without an answer")
            received += chunk
    except OSError as exc:
        raise NotReadyError(f"no answer within {_TIMEOUT_S:g} s ({exc})") from exc
    return received
