"""Which certificates must be made, and makes them: for clusters without cert-manager. Pure.

In: what the cluster holds (authority, serving pair, the bundle that the API server trusts) and the
time; out: the same as it should be. Nothing changes while all of it is good for long enough, so it
may run any number of times. `renew.py` reads and writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from hamicommon.tls import authority_certificate, new_key, serving_certificate

AUTHORITY_LIFE = timedelta(days=3650)
SERVING_LIFE = timedelta(days=90)
RENEW_AT_SHARE = 1 / 3
"""Renewed when less than this share of a life is left: a daily job has a month to get through."""
_BACKDATED = timedelta(hours=1)
_MAX_TRUSTED = 3
"""Authorities in the bundle: the present one, and those whose certificates may still be served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate with its private key, both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """Authority and certificate as they should be."""

    authority: Pair
    serving: Pair
    bundle: bytes
    """PEM: the authority, and former ones that have not expired."""


def issued(
    authority: Pair | None,
    serving: Pair | None,
    bundle: bytes,
    *,
    names: Sequence[str],
    now: datetime,
) -> Issued:
    """Keep what is good and make what is not; the bundle keeps what it trusted."""
    root = authority_of(authority, now)
    leaf = serving if serving is not None and _serves(serving, root, names, now) else None
    return Issued(
        authority=root,
        serving=leaf or _new_leaf(root, names, now),
        bundle=_bundle(root, bundle, now),
    )


def authority_of(held: Pair | None, now: datetime) -> Pair:
    """Return the held authority if it is good for long enough, otherwise a new one."""
    return held if held is not None and _good(held, now) else _new_authority(now)


def renewed(held: Pair | None, authority: Pair, *, names: Sequence[str], now: datetime) -> Pair:
    """Return the held certificate if it is good for long enough, by whichever trusted authority.

    Unlike the webhook's, which the API server trusts by a bundle that is changed first: those who
    meet these read the authorities once, so a new authority signs only what is due.
    """
    if held is not None and _good(held, now):
        return held
    return _new_leaf(authority, names, now)


def serial_of(pair: Pair) -> str:
    """Return the serial number of a certificate."""
    return f"{x509.load_pem_x509_certificate(pair.certificate).serial_number:x}"


def _good(pair: Pair, now: datetime) -> bool:
    """Readable, and far from its end."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = load_pem_private_key(pair.key, password=None)
    except (ValueError, TypeError):
        return False
    if key.public_key() != certificate.public_key():
        return False
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_after_utc - now > life * RENEW_AT_SHARE


def _serves(pair: Pair, authority: Pair, names: Sequence[str], now: datetime) -> bool:
    """Good, by this authority, and for all the names."""
    if not _good(pair, now):
        return False
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
        kind = x509.SubjectAlternativeName
        held = certificate.extensions.get_extension_for_class(kind).value
    except (InvalidSignature, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    return set(names) <= set(held.get_values_for_type(x509.DNSName))


def _bundle(authority: Pair, trusted: bytes, now: datetime) -> bytes:
    try:
        former = x509.load_pem_x509_certificates(trusted) if trusted.strip() else []
    except ValueError:
        former = []
    own = x509.load_pem_x509_certificate(authority.certificate)
    live = [each for each in former if each != own and each.not_valid_after_utc > now]
    kept = [own, *live][:_MAX_TRUSTED]
    return b"".join(each.public_bytes(Encoding.PEM) for each in kept)


def _new_authority(now: datetime) -> Pair:
    key = new_key()
    certificate = authority_certificate(
        "hami authority", key, not_before=now - _BACKDATED, not_after=now + AUTHORITY_LIFE
    )
    return _pair(certificate, key)


def _new_leaf(authority: Pair, names: Sequence[str], now: datetime) -> Pair:
    key = new_key()
    certificate = serving_certificate(
        names,
        key.public_key(),
        issuer=x509.load_pem_x509_certificate(authority.certificate),
        issuer_key=load_pem_private_key(authority.key, password=None),  # type: ignore[arg-type]  # EC or RSA
        not_before=now - _BACKDATED,
        not_after=now + SERVING_LIFE,
    )
    return _pair(certificate, key)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(certificate=certificate.public_bytes(Encoding.PEM), key=pem)
