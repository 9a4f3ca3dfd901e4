"""Make certificates: an authority, and serving certificates that it signs. Pure except for keys.

For clusters without cert-manager (`hami_webhook.certificates`) and for the servers that
`hamictl up` starts on loopback. Both carry what strict verifiers ask for (RFC 5280: key
identifiers, key usage).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LOOPBACK = ipaddress.ip_address("127.0.0.1")


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new key on P-256, which every TLS client accepts at little cost."""
    return ec.generate_private_key(ec.SECP256R1())


def authority_certificate(
    name: str, key: ec.EllipticCurvePrivateKey, *, not_before: datetime, not_after: datetime
) -> x509.Certificate:
    """Return a self-signed CA certificate, which may sign servers' certificates only."""
    public_key = key.public_key()
    return (
        _builder(_name(name), _name(name), public_key, not_before, not_after)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def serving_certificate(
    names: Sequence[str],
    public_key: ec.EllipticCurvePublicKey,
    *,
    issuer: x509.Certificate,
    issuer_key: CertificateIssuerPrivateKeyTypes,
    not_before: datetime,
    not_after: datetime,
) -> x509.Certificate:
    """Return a certificate for these DNS names and 127.0.0.1; the first is the common name."""
    alternatives = [*map(x509.DNSName, names), x509.IPAddress(_LOOPBACK)]
    purpose = ExtendedKeyUsageOID.SERVER_AUTH
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())  # type: ignore[arg-type]  # an issuer's
    return (
        _builder(_name(names[0]), issuer.subject, public_key, not_before, not_after)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(by, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    not_before: datetime,
    not_after: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
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
