"""Sign grants, and make and load the scheduler's keys."""

from __future__ import annotations

import base64
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from nacl.signing import VerifyKey

from hamicommon.errors import InvalidRequest
from hamicommon.grants.grant import Grant


def sign(grant: Grant, key: Ed25519PrivateKey) -> str:
    """Return the signed form of a grant for its annotation."""
    # Defaults are left out: every kubelet, watch and write of the pod carries these bytes.
    payload = grant.model_dump_json(exclude_defaults=True).encode()
    return f"{_encode(payload)}.{_encode(key.sign(payload))}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public_key(key: Ed25519PrivateKey) -> VerifyKey:
    """Return the public key for this private key."""
    return VerifyKey(key.public_key().public_bytes_raw())


def new_key_pair() -> tuple[bytes, bytes]:
    """Return a new private and public key as PEM."""
    key = Ed25519PrivateKey.generate()
    return (
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    )


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """Read the scheduler's private key.

    Raises: InvalidRequest when the file is missing or holds another kind of key.
    """
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as exc:
        raise InvalidRequest(f"{path}: not a usable PEM key: {exc}") from exc
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidRequest(f"{path}: expected an Ed25519 private key in PEM form")
    return key
