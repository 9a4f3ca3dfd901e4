"""Create a certificate authority, serving certificates that it signs, and kubeconfigs.

Only clients of the data folder that contains them trust them.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from hamicommon.tls import authority_certificate, new_key, serving_certificate

_LIFETIME = timedelta(days=3650)  # a data folder is kept for long, and nothing renews them
_BACKDATED = timedelta(minutes=5)  # a container's clock may be a little behind
_PRIVATE = 0o600


@dataclass(frozen=True, slots=True)
class Authority:
    """Certificate and key that sign serving certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, name: str) -> Authority:
        """Create a new authority."""
        key = new_key()
        certificate = authority_certificate(name, key, **_from_now_on())
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate_file: Path, key_file: Path) -> Authority:
        """Load an authority from its files."""
        key = load_pem_private_key(key_file.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return cls(x509.load_pem_x509_certificate(certificate_file.read_bytes()), key)

    def make_serving(self, name: str, *, certificate_file: Path, key_file: Path) -> None:
        """Write a new key with a certificate for `name`, localhost and 127.0.0.1."""
        key = new_key()
        certificate = serving_certificate(
            (name, "localhost"),
            key.public_key(),
            issuer=self.certificate,
            issuer_key=self.key,
            **_from_now_on(),
        )
        write_key(key_file, key)
        write_certificate(certificate_file, certificate)


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    """Write a certificate as PEM, readable by everybody."""
    write_file(path, certificate.public_bytes(Encoding.PEM), private=False)


def write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    """Write a key as PEM, readable by its owner only."""
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    write_file(path, pem, private=True)


def write_file(path: Path, data: bytes, *, private: bool) -> None:
    """Write a file completely or not at all; a private one is never readable by others."""
    partial = path.with_name(path.name + ".partial")
    partial.touch(mode=_PRIVATE if private else 0o644)
    partial.write_bytes(data)
    partial.replace(path)


def _from_now_on() -> dict[str, datetime]:
    now = datetime.now(UTC)
    return {"not_before": now - _BACKDATED, "not_after": now + _LIFETIME}


def kubeconfig(*, server: str, authority: bytes, token: str, user: str = "admin") -> dict[str, Any]:
    """Return a kubeconfig with one cluster, user and context `hami`; `authority` is PEM."""
    data = base64.b64encode(authority).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "hami", "cluster": {"server": server, "certificate-authority-data": data}}
        ],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "hami", "context": {"cluster": "hami", "user": user}}],
        "current-context": "hami",
    }


def write_kubeconfig(
    path: Path, *, server: str, authority: bytes, token: str, user: str = "admin"
) -> Path:
    """Write such a kubeconfig, readable by its owner only; return `path`."""
    config = kubeconfig(server=server, authority=authority, token=token, user=user)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, yaml.safe_dump(config, sort_keys=False).encode(), private=True)
    return path
