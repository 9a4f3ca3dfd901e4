"""An authority of our own and the serving certificates that it signs, for servers on loopback.

Nothing outside of the data folder that they are kept in trusts them.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hamictl.servers.ports import LOOPBACK

_LIFETIME = timedelta(days=3650)  # a data folder is kept for long; nobody would renew them
_BACKDATED = timedelta(minutes=5)  # a container's clock may be a little behind
_PRIVATE = 0o600


@dataclass(frozen=True, slots=True)
class Authority:
    """What signs serving certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, name: str) -> Authority:
        """One that nobody knows yet."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_name(name), _name(name), key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate_file: Path, key_file: Path) -> Authority:
        """The one that was kept."""
        key = load_pem_private_key(key_file.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(x509.load_pem_x509_certificate(certificate_file.read_bytes()), key)

    def make_serving(self, name: str, *, certificate_file: Path, key_file: Path) -> None:
        """Writes a new key and its certificate for `name`, localhost and 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = (
            x509.DNSName("localhost"),
            x509.DNSName(name),
            x509.IPAddress(ipaddress.ip_address(LOOPBACK)),
        )
        certificate = (
            _builder(_name(name), self.certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        write_key(key_file, key)
        write_certificate(certificate_file, certificate)


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    """As PEM, for everybody."""
    write_file(path, certificate.public_bytes(Encoding.PEM), private=False)


def write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    """As PEM, for its owner alone."""
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    write_file(path, pem, private=True)


def write_file(path: Path, data: bytes, *, private: bool) -> None:
    """All of it or nothing; a private file is its owner's alone from the first byte on."""
    partial = path.with_name(path.name + ".partial")
    partial.touch(mode=_PRIVATE if private else 0o644)
    partial.write_bytes(data)
    partial.replace(path)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _LIFETIME)
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
