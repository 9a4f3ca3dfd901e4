"""Keys, certificates, tokens and passwords of a local system, made once and kept in its folder."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hamicommon import grants

_LIFETIME = timedelta(days=365)
_PRIVATE = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Paths of what was made; the passwords are read from theirs."""

    folder: Path

    @property
    def ca(self) -> Path:
        """Certificate of the authority that signed the others."""
        return self.folder / "ca.pem"

    @property
    def grant_key(self) -> Path:
        """The scheduler's signing key."""
        return self.folder / "grant.key"

    @property
    def grant_public_key(self) -> Path:
        """What agents verify grants with."""
        return self.folder / "grant.pub"

    @property
    def tokens(self) -> Path:
        """kube-apiserver's token file."""
        return self.folder / "tokens.csv"

    def certificate(self, name: str) -> Path:
        """Serving certificate of `name`."""
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        """Private key of `name`."""
        return self.folder / f"{name}.key"

    def secret(self, name: str) -> str:
        """A random secret under this name; the same on every call."""
        path = self.folder / f"{name}.secret"
        if not path.exists():
            _write(path, secrets.token_urlsafe(24).encode(), _PRIVATE)
        return path.read_text()


def ensure_credentials(folder: Path, *, serving: tuple[str, ...]) -> Credentials:
    """Makes what is missing: authority, a serving certificate per name, grant keys, tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    made = Credentials(folder=folder)
    if not made.ca.exists():
        _make_authority(made)
    for name in serving:
        if not made.certificate(name).exists():
            _make_certificate(made, name)
    if not made.grant_public_key.exists():
        private, public = grants.new_key_pair()
        _write(made.grant_key, private, _PRIVATE)
        _write(made.grant_public_key, public, 0o644)
    if not made.tokens.exists():
        line = f'{made.secret("kubernetes-admin")},admin,admin,"system:masters"\n'
        _write(made.tokens, line.encode(), _PRIVATE)
    return made


def _make_authority(made: Credentials) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hami local authority")])
    certificate = (
        _builder(name, name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_key(made.folder / "ca.key", key)
    _write(made.ca, certificate.public_bytes(Encoding.PEM), 0o644)


def _make_certificate(made: Credentials, name: str) -> None:
    authority_key = load_pem_private_key((made.folder / "ca.key").read_bytes(), password=None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    authority = x509.load_pem_x509_certificate(made.ca.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = x509.SubjectAlternativeName(
        [
            x509.DNSName("localhost"),
            x509.DNSName(name),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
    )
    certificate = (
        _builder(subject, authority.subject, key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    _write_key(made.key(name), key)
    _write(made.certificate(name), certificate.public_bytes(Encoding.PEM), 0o644)


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
        .not_valid_before(now - timedelta(minutes=5))
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


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), _PRIVATE)


def _write(path: Path, data: bytes, mode: int) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.touch(mode=mode)
    partial.write_bytes(data)
    partial.replace(path)
