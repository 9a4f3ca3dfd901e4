"""Read the certificates of Postgres and NATS, to warn before they expire.

This service logs in to both by password and has no certificate of its own. It stops working when
their certificates expire, which they read only at start (k8s/README.md, "Certificates"). Input: the
servers' addresses. Output: the expiry of the certificates that they present. Each check opens a
connection that ends with the handshake: it sends nothing and verifies nothing, so a certificate
that expired or is for another host is still read.

Sources: PostgreSQL, "Message Formats" (SSLRequest); NATS client protocol, `INFO`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from datetime import datetime
from urllib.parse import urlsplit

import orjson
from cryptography import x509
from hamicommon.errors import Unavailable
from hamicommon.ledger.connection import places_of
from hamicommon.settings import NatsSettings, PostgresSettings

POSTGRES_PORT, NATS_PORT = 5432, 4222
_MAX_OF_INFO = 65_536
"""Maximum bytes of NATS's INFO line."""
_SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")

Opening = Callable[[socket.socket], bool]
"""Steps on a connection before the TLS handshake; returns False if the server has no TLS."""


class ServerCertificate:
    """Certificate of one backend, which may have several addresses."""

    def __init__(
        self, server: str, urls: Sequence[str], port: int, opening: Opening, *, timeout_s: float
    ) -> None:
        """`port`: used for URLs without a port."""
        self.server = server
        self._urls = urls
        self._port = port
        self._opening = opening
        self._timeout_s = timeout_s

    async def not_after(self) -> datetime | None:
        """Return the earliest expiry of the addresses' certificates; None: none uses TLS.

        Raises: Unavailable when an address does not answer, or not as this kind of server.
        """
        ends = [await self._not_after(url) for url in self._urls]
        return min((end for end in ends if end is not None), default=None)

    async def _not_after(self, url: str) -> datetime | None:
        try:
            parts = urlsplit(url.strip())
            if not parts.hostname:
                return None  # a Unix socket
            address = (parts.hostname, parts.port or self._port)
            presented = await asyncio.to_thread(
                _fetch_certificate, address, self._opening, self._timeout_s
            )
            if presented is None:
                return None
            return x509.load_der_x509_certificate(presented).not_valid_after_utc
        except TimeoutError as exc:
            why = f"no answer in {self._timeout_s:g} s"
            raise Unavailable(f"the certificate of {self.server} can't be read: {why}") from exc
        except (OSError, ValueError) as exc:
            raise Unavailable(f"the certificate of {self.server} can't be read: {exc}") from exc


def postgres_certificate(settings: PostgresSettings) -> ServerCertificate:
    """Return the certificate of the ledger's server."""
    places = places_of(settings.dsn.get_secret_value())
    return ServerCertificate(
        "postgres",
        [f"//{place}" for place in places],
        POSTGRES_PORT,
        _ask_postgres,
        timeout_s=settings.connect_timeout_s,
    )


def nats_certificate(settings: NatsSettings) -> ServerCertificate:
    """Return the certificate of the bus."""
    urls = settings.url.split(",")
    timeout_s = settings.connect_timeout_s
    return ServerCertificate("nats", urls, NATS_PORT, _ask_nats, timeout_s=timeout_s)


def _fetch_certificate(
    address: tuple[str, int], opening: Opening, timeout_s: float
) -> bytes | None:
    """Return the certificate in DER form; None: no TLS. `timeout_s`: of each step."""
    with socket.create_connection(address, timeout=timeout_s) as plain:
        if not opening(plain):
            return None
        with _unverified_context().wrap_socket(plain, server_hostname=address[0]) as encrypted:
            return encrypted.getpeercert(binary_form=True)


def _ask_postgres(connection: socket.socket) -> bool:
    connection.sendall(_SSL_REQUEST)
    return connection.recv(1) == b"S"


def _ask_nats(connection: socket.socket) -> bool:
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_OF_INFO:
        byte = connection.recv(1)  # what follows the line is the handshake's
        if not byte:
            break
        line += byte
    name, _, rest = line.partition(b" ")
    info = orjson.loads(rest) if name == b"INFO" else None
    if not isinstance(info, dict):
        raise ValueError("the server there is not NATS")
    return bool(info.get("tls_required") or info.get("tls_available"))


def _unverified_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
