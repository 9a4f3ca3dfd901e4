"""Open one connection to the ledger by its DSN; an error is one sentence about the cause.

The DSN is libpq's, with the parameters that `hami-bootstrap` writes into it (`sslmode`,
`sslrootcert`): asyncpg reads it for commands, migrations and pools alike. The messages of OpenSSL
and the driver name neither the setting nor the file; `why_not` does. No sentence contains the
password.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

import asyncpg

from hamicommon.errors import HamiError, InvalidRequest, Unavailable
from hamicommon.settings import PostgresSettings

logger = logging.getLogger(__name__)

Connection: TypeAlias = Any
"""An `asyncpg.Connection`, which has no type hints; jsonb columns are Python values."""

_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
"""Parameters of a DSN that name files (PostgreSQL, libpq, connection strings)."""
_HOSTNAME_MISMATCH = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL's x509_vfy.h."""
_PORT = 5432
_EXPIRED = 10
"""X509_V_ERR_CERT_HAS_EXPIRED."""
_NO_TLS = "rejected SSL upgrade"
RETRY_S = 1.0


async def connect(
    settings: PostgresSettings, *, application: str = "", command_timeout_s: float | None = None
) -> Connection:
    """Open a connection; without `command_timeout_s` statements have no time limit.

    `application` is what `pg_stat_activity` shows.

    Raises: InvalidRequest for an address, mode or file that is none; Unavailable when the server is
    away, refuses us, or is not the one that its certificate is for.
    """
    try:
        return await asyncpg.connect(
            settings.dsn.get_secret_value(),
            timeout=settings.connect_timeout_s,
            command_timeout=command_timeout_s,
            server_settings={"application_name": application} if application else None,
        )
    except CONNECT_ERRORS as exc:
        raise why_not(settings, exc) from exc


async def wait_until_up(settings: PostgresSettings, *, longest_s: float) -> None:
    """Return when the server accepts connections: one that is starting does not yet.

    Raises: as `connect`: immediately for errors that waiting does not fix (address, certificate,
    password), after `longest_s` for a server that is still unavailable.
    """
    logged, ends_at = "", time.monotonic() + longest_s
    while True:
        try:
            connection = await connect(settings)
        except Unavailable as exc:
            if not _is_starting(exc.__cause__) or time.monotonic() >= ends_at:
                raise
            if str(exc) != logged:
                logged = str(exc)
                logger.info("Waiting for Postgres to accept connections: %s", exc)
            await asyncio.sleep(RETRY_S)
        else:
            await connection.close(timeout=settings.connect_timeout_s)
            return


def _is_starting(exc: BaseException | None) -> bool:
    """Return whether the error shows a server, or its Service, that is still starting."""
    if isinstance(exc, ssl.SSLError) or _NO_TLS in str(exc):
        return False
    return isinstance(
        exc,
        asyncpg.CannotConnectNowError
        | asyncpg.PostgresConnectionError
        | asyncpg.AdminShutdownError
        | OSError
        | TimeoutError,
    )


CONNECT_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, OSError, TimeoutError)
"""Errors of asyncpg when it can't connect; `ssl.SSLError` is an OSError."""


def why_not(settings: PostgresSettings, exc: Exception) -> HamiError:
    """Return the sentence for one of `CONNECT_ERRORS`."""
    dsn = settings.dsn.get_secret_value()
    missing = _missing_file(dsn)
    if missing is not None:
        return InvalidRequest(f"HAMI_POSTGRES_DSN: {missing}")
    if isinstance(exc, asyncpg.InterfaceError | ValueError) and not isinstance(exc, OSError):
        return InvalidRequest(
            f"HAMI_POSTGRES_DSN must look like postgresql://user:password@host:port/name: {exc}"
        )
    place = place_of(dsn)
    what = tls_problem(dsn, exc) or str(exc) or f"no answer in {settings.connect_timeout_s:g} s"
    return Unavailable(f"Postgres at {place} can't be reached: {what}")


def tls_problem(dsn: str, exc: BaseException) -> str | None:
    """Return the problem with TLS as the DSN requires it; None: TLS is not the cause."""
    mode, trusted = _value(dsn, "sslmode") or "prefer", _value(dsn, "sslrootcert")
    if isinstance(exc, ssl.SSLCertVerificationError):
        if exc.verify_code in _HOSTNAME_MISMATCH:
            hosts = " or ".join(place.rpartition(":")[0].strip("[]") for place in places_of(dsn))
            return f"its certificate is for another host than {hosts} (sslmode={mode})"
        if exc.verify_code == _EXPIRED:
            return "its certificate has expired"
        return (
            f"its certificate is not of an authority in sslrootcert={trusted}: {exc.verify_message}"
        )
    if isinstance(exc, ssl.SSLError) and "NO_CERTIFICATE_OR_CRL_FOUND" in str(exc):
        return f"sslrootcert={trusted} holds no certificate"
    if isinstance(exc, ssl.SSLError):
        return f"TLS failed: {exc.reason or exc}"
    if isinstance(exc, ConnectionError) and _NO_TLS in str(exc):
        return f"the server speaks no TLS, which sslmode={mode} asks for"
    return None


def place_of(dsn: str) -> str:
    """Return hosts, ports and database of a DSN, without the password."""
    return ",".join(places_of(dsn)) + urlsplit(dsn).path


def places_of(dsn: str) -> list[str]:
    """Return `host:port` of each server that a DSN names, any of which may be the primary.

    More than one is libpq's way to follow a failover, with `target_session_attrs=read-write`.
    """
    places = urlsplit(dsn).netloc.rpartition("@")[2].split(",")
    return [
        place if re.search(r":\d+$", place) else f"{place.rstrip(':')}:{_PORT}" for place in places
    ]


def _missing_file(dsn: str) -> str | None:
    for name in _FILES:
        path = _value(dsn, name)
        if path and not Path(path).is_file():
            return f"{name}={path}: there is no such file"
    return None


def _value(dsn: str, parameter: str) -> str | None:
    try:
        found = parse_qs(urlsplit(dsn).query).get(parameter)
    except ValueError:
        return None
    return found[-1] if found else None
