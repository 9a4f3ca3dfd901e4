"""When a client stops being able to verify its server."""

import ssl
from datetime import UTC, datetime, timedelta

from cryptography.hazmat.primitives.serialization import Encoding
from hamicommon.process.trusted_authorities import trusted_until
from hamicommon.tls import authority_certificate, new_key

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def authority(days: int) -> str:
    """An authority of that many days more, as PEM."""
    made = authority_certificate(
        "an authority", new_key(), not_before=NOW, not_after=NOW + timedelta(days=days)
    )
    return made.public_bytes(Encoding.PEM).decode()


def trusting(*authorities: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authorities:
        context.load_verify_locations(cadata="".join(authorities))
    return context


def test_one_authority_is_trusted_until_it_expires() -> None:
    assert trusted_until(trusting(authority(90))) == NOW + timedelta(days=90)


def test_a_renewed_authority_beside_the_old_one_is_what_counts() -> None:
    assert trusted_until(trusting(authority(3), authority(3650))) == NOW + timedelta(days=3650)


def test_without_tls_or_authority_nothing_is_known() -> None:
    assert trusted_until(None) is None
    assert trusted_until(trusting()) is None
