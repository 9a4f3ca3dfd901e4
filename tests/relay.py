"""A port in front of a server, like a Service whose pod has not started, or a forwarded port."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit, urlunsplit

_CHUNK_BYTES = 65536


class Relay:
    """Refuses connections until `open`; then passes on up to `most` of them."""

    def __init__(self, dsn: str, *, most: int | None = None, most_bytes: int | None = None) -> None:
        """`most_bytes`: what a client gets before its connection is closed."""
        self._behind = urlsplit(dsn)
        self._most, self._most_bytes = most, most_bytes
        # A bound port that does not listen refuses, and no other process can take it.
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._port = self._socket.getsockname()[1]
        self._open: list[socket.socket] = []
        self._copying: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept)
        self.accepted = 0

    @property
    def dsn(self) -> str:
        """URL of the server by this port."""
        user = self._behind.netloc.rpartition("@")[0]
        place = f"127.0.0.1:{self._port}"
        return urlunsplit(self._behind._replace(netloc=f"{user}@{place}" if user else place))

    def open(self) -> None:
        """Accept connections from now on."""
        self._socket.listen(16)
        self._thread.start()

    def close(self) -> None:
        """Close it and its connections."""
        _hang_up(self._socket)
        if self._thread.ident is not None:
            self._thread.join()
        _hang_up(*self._open)
        for thread in self._copying:
            thread.join()
        for each in (self._socket, *self._open):
            each.close()

    def _accept(self) -> None:
        while self._most is None or self.accepted < self._most:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            self.accepted += 1
            server = socket.create_connection((self._behind.hostname, self._behind.port))
            self._open += (client, server)
            for source, target, most in (
                (client, server, None),
                (server, client, self._most_bytes),
            ):
                thread = threading.Thread(target=_copy, args=(source, target, most))
                self._copying.append(thread)
                thread.start()
        self._socket.close()


def _copy(source: socket.socket, target: socket.socket, most: int | None) -> None:
    passed = 0
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            passed += len(data)
            if most is not None and passed > most:
                break
            target.sendall(data)
    _hang_up(source, target)


def _hang_up(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay(dsn: str, *, most: int | None = None, most_bytes: int | None = None) -> Iterator[Relay]:
    """A relay that is not open yet, until the block ends."""
    made = Relay(dsn, most=most, most_bytes=most_bytes)
    try:
        yield made
    finally:
        made.close()
