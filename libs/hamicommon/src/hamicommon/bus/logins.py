"""Read and answer NATS's auth-callout requests for logins with a token. Pure.

The server asks on `ASK_SUBJECT` about every client whose user is not in its configuration; the
answer is a JWT, signed by the account's key, that holds the client's permissions or the reason for
refusing it (ADR 7). `hami_scheduler.bus.auth` decides; the forms are those of nats-io/jwt,
version 2.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Any

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from hamicommon.bus.permissions import ASK_SUBJECT as ASK_SUBJECT
from hamicommon.bus.permissions import Permissions
from hamicommon.errors import InvalidRequest

GLOBAL_ACCOUNT = "$G"
"""Name of the account of a server that is configured without accounts."""

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_ACCOUNT_PREFIX = 0
"""Prefix byte of nkeys that begin with `A`."""
_RESPONSE_TTL_NS = 120 * 10**9
"""Lifetime of a permission to reply, like `allow_responses: true`: two minutes, one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginRequest:
    """The server's question whether one client may log in."""

    server_id: str
    user_nkey: str
    """Key that the server made for this connection; the answer must name it."""
    client_name: str
    token: str
    """The client's `auth_token`; empty if it sent none."""


def account_id(key: Ed25519PublicKey) -> str:
    """Return the public nkey (`A...`) of an account with this key, for `auth_callout.issuer`."""
    raw = bytes([_ACCOUNT_PREFIX << 3]) + key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    checked = raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(checked).rstrip(b"=").decode()


def read_question(data: bytes) -> LoginRequest:
    """Read the server's question; its signature is not checked, as only the server publishes there.

    Raises: InvalidRequest when it is none.
    """
    try:
        claims = orjson.loads(_decode(data.decode().split(".")[1]))
        asked = claims["nats"]
        options = asked.get("connect_opts") or {}
        return LoginRequest(
            server_id=asked["server_id"]["id"],
            user_nkey=asked["user_nkey"],
            client_name=str(options.get("name") or ""),
            token=str(options.get("auth_token") or ""),
        )
    except (ValueError, LookupError, TypeError, AttributeError) as exc:
        raise InvalidRequest(f"not an auth callout request of NATS: {exc}") from exc


def encode_acceptance(
    question: LoginRequest,
    *,
    name: str,
    permissions: Permissions,
    key: Ed25519PrivateKey,
    now_s: int,
    lifetime_s: int,
) -> bytes:
    """Return the answer that lets the client in as `name`, with its permissions and lifetime."""
    may: dict[str, Any] = {
        "pub": {"allow": list(permissions.publish)},
        "sub": {"allow": list(permissions.subscribe)},
        # The server applies no limits of these answers (2.15, without an operator): those on the
        # size of a message and on subscriptions are in its configuration.
        "subs": -1,
        "data": -1,
        "payload": -1,
        "type": "user",
        "version": 2,
    }
    if permissions.answers:
        may["resp"] = {"max": 1, "ttl": _RESPONSE_TTL_NS}
    user = {
        "name": name,
        "sub": question.user_nkey,
        "aud": GLOBAL_ACCOUNT,
        "iat": now_s,
        "exp": now_s + lifetime_s,
        "nats": may,
    }
    return _answer(question, key, now_s, jwt=_sign(user, key))


def encode_refusal(
    question: LoginRequest, reason: str, *, key: Ed25519PrivateKey, now_s: int
) -> bytes:
    """Return the answer that refuses the client; only the server's log shows the reason."""
    return _answer(question, key, now_s, error=reason)


def _answer(question: LoginRequest, key: Ed25519PrivateKey, now_s: int, **result: str) -> bytes:
    claims = {
        "sub": question.user_nkey,
        "aud": question.server_id,
        "iat": now_s,
        "nats": {**result, "type": "authorization_response", "version": 2},
    }
    return _sign(claims, key).encode()


def _sign(claims: dict[str, Any], key: Ed25519PrivateKey) -> str:
    body = {**claims, "iss": account_id(key.public_key())}
    body["jti"] = base64.b32encode(hashlib.sha256(orjson.dumps(body)).digest()).decode().rstrip("=")
    text = f"{_encode(orjson.dumps(_HEADER))}.{_encode(orjson.dumps(body))}"
    return f"{text}.{_encode(key.sign(text.encode()))}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
