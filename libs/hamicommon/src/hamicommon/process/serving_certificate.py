"""Load and check the serving certificate, and reload it without dropping requests.

Every handshake uses the newest valid context (through the server-name callback, which OpenSSL also
calls for clients that name no server). A rotation is therefore one assignment: a handshake sees the
old pair or the new one, never half of each. A pair that doesn't match (one file is not written
yet) is reported, and the old pair stays. Directories are watched, because a Secret volume swaps a
symlink; a check every second catches changes that the watch misses.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from cryptography import x509
from watchfiles import awatch

from hamicommon.errors import InvalidRequest

logger = logging.getLogger(__name__)

# Reading two small files costs nothing, and the watch begins a moment after the first load.
RECHECK_MS = 1_000
# A tool writes certificate and key within milliseconds of each other: one check covers both. The
# watching thread wakes at this interval, and takes the interpreter lock each time.
_DEBOUNCE_MS = 50
_LONGEST_MS = 200

Reloaded = Literal["loaded", "refused"]
"""Result of a reload."""


class ServingCertificate:
    """TLS context from the newest valid certificate and key.

    `on_reload` is called at every change, `on_expiry` with the expiry of the served certificate,
    also at the start.
    """

    def __init__(
        self,
        cert_file: Path,
        key_file: Path,
        *,
        on_reload: Callable[[Reloaded], None] = lambda _result: None,
        on_expiry: Callable[[datetime], None] = lambda _not_after: None,
    ) -> None:
        """Load the files. Raises: InvalidRequest when they can't be used."""
        self._files = (cert_file, key_file)
        self._on_reload, self._on_expiry = on_reload, on_expiry
        self._loaded = self._read()
        self._current = self._load()
        # Built like the newest one; a handshake begins with it.
        self.context = self._load()
        self.context.sni_callback = self._choose

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        connection.context = self._current

    def is_expired(self, now: datetime) -> bool:
        """Return whether clients no longer accept the certificate."""
        return now >= self.not_after

    async def watch(self) -> None:
        """Reload whenever the files change, until cancelled."""
        folders = {path.parent for path in self._files}
        async for _changes in awatch(
            *folders,
            recursive=False,
            debounce=_LONGEST_MS,
            step=_DEBOUNCE_MS,
            rust_timeout=RECHECK_MS,
            yield_on_timeout=True,
        ):
            self.reload_if_changed()

    def reload_if_changed(self) -> bool:
        """Load a changed pair if it is valid; return whether it was loaded."""
        try:
            content = self._read()
            if content == self._loaded:
                return False
            self._current = self._load()
            self._loaded = content
        except InvalidRequest as exc:
            self._on_reload("refused")
            logger.error(
                "Failed to reload the certificate, the old one stays in use",
                extra={"error": str(exc)},
            )
            return False
        self._on_reload("loaded")
        logger.info("Reloaded the certificate", extra={"not_after": self.not_after.isoformat()})
        return True

    def _read(self) -> tuple[bytes, ...]:
        try:
            return tuple(path.read_bytes() for path in self._files)
        except OSError as exc:
            raise InvalidRequest(f"{exc.filename}: not readable: {exc.strerror}") from exc

    def _load(self) -> ssl.SSLContext:
        cert_file, key_file = self._files
        context = _server_context()
        try:
            context.load_cert_chain(cert_file, key_file)
            certificate = x509.load_pem_x509_certificate(cert_file.read_bytes())
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
            what = getattr(exc, "reason", "") or str(exc)
            raise InvalidRequest(
                f"{cert_file} and {key_file} are not a certificate and its key: {what}"
            ) from exc
        if datetime.now(UTC) >= certificate.not_valid_after_utc:
            ended = certificate.not_valid_after_utc.isoformat()
            raise InvalidRequest(f"{cert_file} expired at {ended}")
        self.not_after = certificate.not_valid_after_utc
        self._on_expiry(self.not_after)
        return context


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context
