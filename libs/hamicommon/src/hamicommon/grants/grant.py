"""The grant that the scheduler publishes to a node for one pod, also in signed form.

It is published on the bus before the binding, answered in the snapshot, and mirrored in the pod
annotation `hami.io/grant`, signed with Ed25519, so that an agent that can't reach the bus accepts
this and nothing else: no field that a user can write ever creates an allocation (HAMi#3041).

Signed form: `base64url(payload).base64url(signature)`; the payload is the grant's JSON. Signing is
in `signing.py`; here is what a node needs, with libsodium, which costs it 8 MB less.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hamicommon.domain.allocations import (
    Allocation,
    ContainerGrant,
    DeviceShare,
    Origin,
    slices_name,
)
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import InvalidRequest

_PEM = re.compile(r"-----BEGIN PUBLIC KEY-----(?P<body>[^-]+)-----END PUBLIC KEY-----")
# All that stands before the key itself in its DER form (RFC 8410, section 4).
_ED25519 = bytes.fromhex("302a300506032b6570032100")
_KEY_BYTES = 32
LIFETIME_S = 600.0
"""Time in seconds for which an agent trusts a grant without asking again."""


class GrantedShare(BaseModel):
    """One slice of a card."""

    model_config = ConfigDict(frozen=True)

    uuid: str
    vendor: str
    memory_mib: int
    core_percent: int
    slots: int = 1
    type: str = ""
    detail: dict[str, Any] = Field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Return whether version 1 of the format can express the slice."""
        return self.slots == 1 and not self.type and not self.detail


class GrantedContainer(BaseModel):
    """One container with its slices."""

    model_config = ConfigDict(frozen=True)

    index: int
    name: str
    role: Literal["init", "app"]
    """Role of the container; `app` for sidecars, because older agents know no `sidecar`."""
    sidecar: bool = False
    """Whether it is a sidecar: it starts before later init containers and keeps running."""
    shares: tuple[GrantedShare, ...] = ()
    slices: str = ""
    """Name of the slices, if they come by ResourceClaims; equal for containers that share them."""

    def to_domain(self) -> ContainerGrant:
        """Convert to a domain value."""
        return ContainerGrant(
            index=self.index,
            name=self.name,
            role="sidecar" if self.sidecar else self.role,
            shares=tuple(
                DeviceShare(
                    uuid=GpuUuid(share.uuid),
                    vendor=share.vendor,
                    memory_mib=share.memory_mib,
                    core_percent=share.core_percent,
                    slots=share.slots,
                    type=share.type,
                    detail=share.detail,
                )
                for share in self.shares
            ),
        )


class Grant(BaseModel):
    """Slices of one pod on one node, with the fencing token of the allocation."""

    model_config = ConfigDict(frozen=True)

    version: Literal[1, 2] = 1
    """Format version; 2 if a slice has size, type or detail, or if the grant is `answered`.

    An agent of version 1 would ignore these fields.
    """
    allocation_id: str
    pod_uid: str
    namespace: str
    pod_name: str
    node: str
    token: int
    containers: tuple[GrantedContainer, ...]
    traceparent: str = ""
    answered: bool = False
    """Whether the kubelet got its Allocate answers before this grant, so that no call will come."""
    claimed: bool = False
    """Whether the grant is for ResourceClaims, for which the kubelet never calls Allocate."""
    expires_at: datetime
    """Time at which the signed form expires; a bound pod's grant in the ledger does not."""

    def domain_containers(self) -> tuple[ContainerGrant, ...]:
        """Return the containers as domain values, in the order of the spec."""
        return tuple(container.to_domain() for container in self.containers)


def grant_of(allocation: Allocation, *, expires_at: datetime | None = None) -> Grant:
    """Make the grant of an allocation that has a token; it lasts `LIFETIME_S` by default.

    Raises: InvalidRequest when the allocation has no token yet.
    """
    if allocation.token is None:
        raise InvalidRequest(f"allocation {allocation.id} has no token: it is not being bound")
    containers = tuple(
        _granted_container(container, allocation) for container in allocation.containers
    )
    plain = all(share.plain for container in containers for share in container.shares)
    answered = allocation.origin is not Origin.SCHEDULED
    return Grant(
        version=1 if plain and not answered else 2,
        allocation_id=allocation.id,
        pod_uid=allocation.pod_uid,
        namespace=allocation.namespace,
        pod_name=allocation.pod_name,
        node=allocation.node,
        token=allocation.token,
        traceparent=allocation.traceparent,
        answered=answered,
        claimed=allocation.origin is Origin.CLAIM,
        expires_at=expires_at or datetime.now(UTC) + timedelta(seconds=LIFETIME_S),
        containers=containers,
    )


def _granted_container(container: ContainerGrant, allocation: Allocation) -> GrantedContainer:
    """Return all slices that a container uses, also those that count for another container."""
    claimed = [each for each in allocation.claims if each.container == container.index]
    shares = tuple(each.share for each in claimed) if claimed else container.shares
    return GrantedContainer(
        index=container.index,
        name=container.name,
        role="init" if container.role == "init" else "app",
        # As the ledger stores it: with the slices.
        sidecar=container.role == "sidecar" and bool(shares),
        slices=slices_name(each.key for each in claimed) if claimed else "",
        shares=tuple(
            GrantedShare(
                uuid=share.uuid,
                vendor=share.vendor,
                memory_mib=share.memory_mib,
                core_percent=share.core_percent,
                slots=share.slots,
                type=share.type,
                detail=dict(share.detail),
            )
            for share in shares
        ),
    )


def verify(text: str, key: VerifyKey, *, now: datetime) -> Grant:
    """Read a signed grant that has not expired.

    Raises: InvalidRequest when it is malformed, not signed by `key`, or past its expiry.
    """
    grant = read_signed(text, key)
    if now > grant.expires_at:
        raise InvalidRequest(f"hami.io/grant expired at {grant.expires_at.isoformat()}")
    return grant


def read_signed(text: str, key: VerifyKey) -> Grant:
    """Read a signed grant, however old.

    Raises: InvalidRequest when it is malformed or not signed by `key`.
    """
    payload_text, _, signature_text = text.partition(".")
    try:
        payload = base64.urlsafe_b64decode(_pad(payload_text))
        key.verify(payload, base64.urlsafe_b64decode(_pad(signature_text)))
        return Grant.model_validate_json(payload)
    except BadSignatureError as exc:
        raise InvalidRequest("hami.io/grant has no valid signature of hami-scheduler") from exc
    except (binascii.Error, ValueError, ValidationError) as exc:
        raise InvalidRequest(f"hami.io/grant is malformed: {exc}") from exc


def _pad(text: str) -> str:
    return text + "=" * (-len(text) % 4)


def load_public_key(path: Path) -> VerifyKey:
    """Read the public key with which agents verify grants.

    Raises: InvalidRequest when the file is missing or holds another kind of key.
    """
    try:
        found = _PEM.search(path.read_text())
        der = base64.b64decode(found["body"]) if found is not None else b""
    except (OSError, ValueError) as exc:
        raise InvalidRequest(f"{path}: not a usable PEM key: {exc}") from exc
    if not der.startswith(_ED25519) or len(der) != len(_ED25519) + _KEY_BYTES:
        raise InvalidRequest(f"{path}: expected an Ed25519 public key in PEM form")
    return VerifyKey(der.removeprefix(_ED25519))
