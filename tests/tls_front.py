"""TLS in front of a PostgreSQL that was built without it, by the protocol's own negotiation.

The wheels' server has no OpenSSL. A client that asks for encryption (SSLRequest, PostgreSQL's
"Message Formats") is answered `S` and gets a handshake with a real certificate; then its data is
forwarded to the real server. Without a certificate the server itself answers, with `N`.
"""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hamicommon.tls import new_key, serving_certificate
from hamilocal.servers.certificates import Authority

SSL_REQUEST = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
_CHUNK_BYTES = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Place for clients to connect, and the authority's file."""

    port: int
    ca_file: Path


@contextmanager
def tls_front(
    folder: Path,
    dsn: str,
    *,
    names: tuple[str, ...] = ("localhost",),
    valid_s: float = 86400.0,
    bind: str = "127.0.0.1",
) -> Iterator[Front]:
    """Serve `names` (and 127.0.0.1) until the block ends, on a separate thread."""
    authority = Authority.new("test authority")
    (folder / "ca.crt").write_bytes(authority.certificate.public_bytes(Encoding.PEM))
    key, now = new_key(), datetime.now(UTC)
    certificate = serving_certificate(
        names,
        key.public_key(),
        issuer=authority.certificate,
        issuer_key=authority.key,
        not_before=now - timedelta(days=2),
        not_after=now + timedelta(seconds=valid_s),
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "tls.pem").write_bytes(certificate.public_bytes(Encoding.PEM) + pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "tls.pem")
    loop = asyncio.new_event_loop()
    behind = urlsplit(dsn)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = None
        try:
            first = await reader.readexactly(8)
            if first == SSL_REQUEST:
                writer.write(b"S")
                await writer.drain()
                await writer.start_tls(context)
                first = b""
            from_server, server = await asyncio.open_connection(behind.hostname, behind.port)
            server.write(first)
            await asyncio.gather(_copy(reader, server), _copy(from_server, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass  # a client that refuses our certificate hangs up
        except asyncio.CancelledError:
            pass  # the block ended; Python 3.11's streams log a handler that ends cancelled
        finally:
            for each in (writer, server):
                if each is not None:
                    each.close()

    started = asyncio.run_coroutine_threadsafe
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        listening = started(asyncio.start_server(serve, bind, 0), loop).result()
        yield Front(port=listening.sockets[0].getsockname()[1], ca_file=folder / "ca.crt")
        started(_end(listening), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _end(listening: asyncio.Server) -> None:
    listening.close()
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
