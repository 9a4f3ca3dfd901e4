"""Open the sockets on which services listen, before they serve."""

from __future__ import annotations

import socket

from hamicommon.errors import InvalidRequest, Unavailable

BACKLOG = 2048


def parse_bind(text: str) -> tuple[str, int]:
    """Parse `host:port`, `[v6]:port` or `:port` (all interfaces).

    Raises: InvalidRequest with what would be right.
    """
    host, separator, port = text.rpartition(":")
    if not separator or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise InvalidRequest(f"{text!r} is not an address to listen on: use host:port")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)


def listen(bind: str) -> socket.socket:
    """Return a listening socket.

    Raises: Unavailable when the address is taken or is not ours.
    """
    host, port = parse_bind(bind)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as exc:
        raise Unavailable(f"can't listen on {bind}: {exc.strerror or exc}") from exc
    # Head and body of an answer are two writes: without this the second one waits for the client's
    # delayed acknowledgement, 40 ms. asyncio sets it only on sockets that were made with their
    # protocol named, which create_server's are not; accepted ones inherit it.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening
