"""Create every Secret that the manifests of `k8s/` name, once per run of `hami-bootstrap`.

A Job runs it with each version that is installed; until it has run, the other pods wait for their
Secrets. `certificates.py` creates authority and certificates, and makes the webhook trusted.
Existing Secrets stay unchanged: a user's own Secret, such as a DSN of another Postgres, is created
before the installation and never changed. If the API server is too old for these manifests, the
webhook stays untrusted, and so without effect.
"""

from __future__ import annotations

import base64
import logging
import re
import secrets
from collections.abc import Mapping
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from hamicommon.admission.registration import CONFIGURATION_PATH
from hamicommon.bus.logins import account_id
from hamicommon.errors import Conflict, InvalidRequest, NotFound
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json

from hami_webhook.certificates import issue, make_authority, run_once
from hami_webhook.settings import RenewalSettings

logger = logging.getLogger(__name__)

GRANT_KEY, GRANT_PUBLIC_KEY = "hami-grant-key", "hami-grant-public-key"
LOGIN_KEY = "hami-nats-login-key"
REDIS = "hami-redis"
POSTGRES_ROLES = {
    "hami-postgres-owner": "hami",
    "hami-postgres-scheduler": "hami_scheduler",
    "hami-postgres-metrics": "hami_metrics",
}
"""Database role of each Secret with a password and a DSN."""
BUS_USERS = ("hami-nats-scheduler", "hami-nats-metrics", "hami-nats-webhook")
"""Secrets with a password of the bus; node-agents use tokens instead (ADR 7)."""
PRIVATE, PUBLIC = "private.pem", "public.pem"
_PASSWORD_BYTES = 24

ISSUER_CONFIG_MAP = "hami-nats-login"
OLDEST_MINOR = 20
"""Oldest supported minor version of Kubernetes 1."""
MATCH_CONDITIONS_MINOR = 28
"""First minor version in which webhooks can exclude pods (`matchConditions`, beta)."""
_TRIES = 40
"""Maximum number of attempts, more than there are objects: each Conflict is another run's."""
_OVERLAYS = ((23, "old-cluster"), (25, "v1.23"), (MATCH_CONDITIONS_MINOR, "v1.25"))
"""Overlays for clusters below a minor version."""
NAMES = (GRANT_KEY, GRANT_PUBLIC_KEY, LOGIN_KEY, *POSTGRES_ROLES, REDIS, *BUS_USERS)
"""Secrets that `missing` may create."""

Data = Mapping[str, bytes]


def main() -> None:
    """Run `hami-bootstrap`."""
    run_once("hami-bootstrap", create)


async def create(api: KubeApi, settings: RenewalSettings, now: datetime) -> None:
    """Create missing Secrets, in an order in which a later run completes a killed one.

    Raises: InvalidRequest (a cluster that is too old, or got manifests for a newer one; a key that
    can't be read), Unavailable, Forbidden, Conflict (another run was faster every time).
    """
    check_version(await api.get("/version"), await _webhook_policies(api))
    for left in reversed(range(_TRIES)):
        try:
            await _make(api, settings, now)
        except Conflict:
            if not left:
                raise
        else:
            return


async def _make(api: KubeApi, settings: RenewalSettings, now: datetime) -> None:
    collection = f"/api/v1/namespaces/{settings.namespace}/secrets"
    held = {name: data for name in NAMES if (data := await _data(api, f"{collection}/{name}"))}
    for name, data in missing(held, settings.namespace).items():
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        await api.create(collection, {**body, "type": "Opaque", "data": encoded})
        logger.info("Created a Secret", extra={"secret": f"{settings.namespace}/{name}"})
        held[name] = data
    await _name_issuer(api, settings.namespace, login_issuer(held[LOGIN_KEY]))
    if settings.issue:
        await issue(api, settings, now)
    else:
        await make_authority(api, settings, now)


async def _name_issuer(api: KubeApi, namespace: str, issuer: str) -> None:
    """Write the ConfigMap with which the bus verifies logins of node-agents."""
    collection = f"/api/v1/namespaces/{namespace}/configmaps"
    try:
        await api.get(f"{collection}/{ISSUER_CONFIG_MAP}")
    except NotFound:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ISSUER_CONFIG_MAP}}
        await api.create(collection, {**body, "data": {"issuer": issuer}})


async def _data(api: KubeApi, path: str) -> Data | None:
    try:
        found = await api.get(path)
    except NotFound:
        return None
    return {key: base64.b64decode(text) for key, text in (found.get("data") or {}).items()}


async def _webhook_policies(api: KubeApi) -> list[str]:
    """Return the failurePolicy of each of our registered webhooks."""
    try:
        found = await api.get(CONFIGURATION_PATH)
    except NotFound:
        return []
    return [hook.get("failurePolicy", "Fail") for hook in found.get("webhooks", ())]


def check_version(version: Json, failure_policies: list[str]) -> None:
    """Check that the API server is new enough for the applied manifests.

    An older one silently drops unknown fields, and a webhook without `matchConditions`
    that fails closed would refuse every pod of the cluster whenever it is unavailable.

    Raises: InvalidRequest with the manifests to apply instead.
    """
    found = re.match(r"\d+", str(version.get("minor", "")))
    if str(version.get("major")) != "1" or found is None:
        raise InvalidRequest("the API server does not report its version as 1.x")
    minor = int(found[0])
    if minor < OLDEST_MINOR:
        raise InvalidRequest(
            f"Kubernetes 1.{minor} is not supported; 1.{OLDEST_MINOR} is the oldest that is"
        )
    if minor < MATCH_CONDITIONS_MINOR and "Fail" in failure_policies:
        overlay = next(name for below, name in _OVERLAYS if minor < below)
        raise InvalidRequest(
            f"Kubernetes 1.{minor} has no matchConditions, so the webhook of these manifests would "
            f"refuse every pod whenever it is unavailable: apply k8s/overlays/{overlay} instead"
        )


def missing(held: Mapping[str, Data], namespace: str) -> dict[str, Data]:
    """Create the missing credentials of `NAMES`, in the order of their dependencies.

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
    return {name: made[name] for name in NAMES if name not in held}


def login_issuer(login_key: Data) -> str:
    """Return the public key for `auth_callout.issuer`, which verifies logins of node-agents.

    Raises: InvalidRequest when the key can't be read.
    """
    return account_id(_key_of(LOGIN_KEY, login_key).public_key())


def _key_of(name: str, data: Data) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(data.get(PRIVATE, b""), password=None)
    except (ValueError, TypeError) as exc:
        raise InvalidRequest(f"Secret {name}: {PRIVATE} is not a private key in PEM form") from exc
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidRequest(f"Secret {name}: {PRIVATE} must be an Ed25519 key")
    return key


def _new_key() -> bytes:
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _public_pem(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _password() -> str:
    """Return a random password of a letter and hexadecimal digits, which never need escaping.

    NATS reads variables as values of its configuration: with only digits, or with 3e11 in front, it
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
    """Return a Redis user for keys `hami:*`, with the default user disabled."""
    password, user = _password(), "hami-scheduler"
    url = f"rediss://{user}:{password}@hami-redis.{namespace}.svc:6379/0?ssl_ca_certs=/ca/ca.crt"
    acl = f"user default off\nuser {user} on >{password} ~hami:* &* +@all -@admin -@dangerous\n"
    return {"url": url.encode(), "users.acl": acl.encode()}


if __name__ == "__main__":
    main()
