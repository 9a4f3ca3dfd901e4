"""Which certificates must be made, and makes them: for clusters without cert-manager. Pure.

In: what the cluster holds (authority, serving pair, the bundle that the API server trusts) and the
time; out: the same as it should be. Nothing changes while all of it is good for long enough, so it
may run any number of times. `renewing.py` reads and writes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE = timedelta(days=3650)
SERVING_LIFE = timedelta(days=90)
RENEW_AT_SHARE = 1 / 3
"""Renewed when less than this share of a life is left: a daily job has a month to get through."""
_BACKDATED = timedelta(hours=1)
_MOST_TRUSTED = 3
"""Authorities in the bundle: the present one, and those whose certificates may still be served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate with its private key, both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """As it should be."""

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
    """What is there where it is good, new where it is not; the bundle keeps what it trusted."""
    root = authority if authority is not None and _good(authority, now) else _new_authority(now)
    leaf = serving if serving is not None and _serves(serving, root, names, now) else None
    return Issued(
        authority=root,
        serving=leaf or _new_serving(root, names, now),
        bundle=_bundle(root, bundle, now),
    )


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
    kept = [own, *live][:_MOST_TRUSTED]
    return b"".join(each.public_bytes(Encoding.PEM) for each in kept)


def _new_authority(now: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hami authority")])
    builder = (
        _builder(name, name, key.public_key(), now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def _new_serving(authority: Pair, names: Sequence[str], now: datetime) -> Pair:
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    signer = load_pem_private_key(authority.key, password=None)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    known = [x509.DNSName(each) for each in names]
    local = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    builder = (
        _builder(name, issuer.subject, key.public_key(), now, SERVING_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([*known, local]), critical=False)
    )
    return _pair(builder.sign(signer, hashes.SHA256()), key)  # type: ignore[arg-type]  # EC or RSA


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + life)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(certificate=certificate.public_bytes(Encoding.PEM), key=pem)
