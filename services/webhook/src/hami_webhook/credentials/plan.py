"""Which Secrets with keys, users and passwords an installation lacks, and makes them. Pure.

What is there stays as it is: a Secret of the user's own, such as a DSN of another
Postgres, is made before the installation and never touched. `create.py` reads and writes;
certificates are `certificate/`'s.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from hamicommon.bus.logins import account_id
from hamicommon.errors import InvalidRequest

GRANT_KEY, GRANT_PUBLIC_KEY = "hami-grant-key", "hami-grant-public-key"
LOGIN_KEY = "hami-nats-login-key"
REDIS = "hami-redis"
POSTGRES_ROLES = {
    "hami-postgres-owner": "hami",
    "hami-postgres-scheduler": "hami_scheduler",
    "hami-postgres-metrics": "hami_metrics",
}
"""By Secret, the role whose password and DSN it has."""
BUS_USERS = ("hami-nats-scheduler", "hami-nats-metrics", "hami-nats-webhook")
"""Secrets with a password of the bus. Node-agents have none (ADR 7)."""
PRIVATE, PUBLIC = "private.pem", "public.pem"
_PASSWORD_BYTES = 24

Data = Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """One to be made."""

    name: str
    data: Data = field(repr=False)


NAMES = (GRANT_KEY, GRANT_PUBLIC_KEY, LOGIN_KEY, *POSTGRES_ROLES, REDIS, *BUS_USERS)
"""Every Secret that `missing` may make."""


def missing(held: Mapping[str, Data], namespace: str) -> list[Secret]:
    """Make the credentials of `NAMES` that are not held, in the order of their dependences.

    A public key comes after its private one, and is that one's if only it is missing.

    Raises: InvalidRequest when a private key that is held can't be read.
    """
    grant = held[GRANT_KEY] if GRANT_KEY in held else {PRIVATE: _new_key()}
    made: dict[str, Data] = {
        GRANT_KEY: grant,
        GRANT_PUBLIC_KEY: {PUBLIC: _public_pem(_key_of(GRANT_KEY, grant))},
        LOGIN_KEY: {PRIVATE: _new_key()},
        **{name: _postgres(role, namespace) for name, role in POSTGRES_ROLES.items()},
        REDIS: _redis(namespace),
        **{name: {"password": _password().encode()} for name in BUS_USERS},
    }
    return [Secret(name=name, data=made[name]) for name in NAMES if name not in held]


def login_issuer(login_key: Data) -> str:
    """How the bus knows the key that answers for node-agents, for `auth_callout.issuer`.

    Raises: InvalidRequest when the key can't be read.
    """
    return account_id(_key_of(LOGIN_KEY, login_key).public_key())


def _key_of(name: str, data: Data) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(data.get(PRIVATE, b""), password=None)
    except (ValueError, TypeError) as exc:
        raise InvalidRequest(f"Secret {name}: {PRIVATE} is no private key in PEM") from exc
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidRequest(f"Secret {name}: {PRIVATE} must be an Ed25519 key")
    return key


def _new_key() -> bytes:
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _public_pem(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _password() -> str:
    """A letter and hexadecimal digits: it needs no escape in a URL, an ACL file or a shell.

    NATS reads variables as values of its configuration: of digits alone, or with 3e11 in front, it
    would be a number or an error there.
    """
    return f"h{secrets.token_hex(_PASSWORD_BYTES)}"


def _postgres(role: str, namespace: str) -> Data:
    password = _password()
    dsn = (
        f"postgresql://{role}:{password}@hami-postgres.{namespace}.svc:5432/hami"
        "?sslmode=verify-full&sslrootcert=/ca/ca.crt"
    )
    # As Kubernetes' basic-auth Secrets name them, which operators of Postgres read.
    return {"username": role.encode(), "password": password.encode(), "dsn": dsn.encode()}


def _redis(namespace: str) -> Data:
    """One user, on our own keys; the default one, which has no password, is off."""
    password, user = _password(), "hami-scheduler"
    url = f"rediss://{user}:{password}@hami-redis.{namespace}.svc:6379/0?ssl_ca_certs=/ca/ca.crt"
    acl = f"user default off\nuser {user} on >{password} ~hami:* &* +@all -@admin -@dangerous\n"
    return {"url": url.encode(), "users.acl": acl.encode()}
