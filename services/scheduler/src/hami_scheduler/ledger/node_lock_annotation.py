"""Annotations by which other vendors' device plugins lock nodes.

Pure. HAMi's `hami.io/mutex.lock` names its pod and ends after five minutes; a lock of a vendor's
own is a bare time without an owner and ends after two (protocol 2.5, 1.3). `node_locks.py`
writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hamicommon.domain.allocations import Allocation
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import NODE_LOCK, decode_node_lock, encode_node_lock
from hamicommon.vendors.interface.vendor import Vendor

HAMI_LIFETIME = timedelta(minutes=5)
OWNERLESS_LIFETIME = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLock:
    """Lock that is held."""

    namespace: str = ""
    pod_name: str = ""
    """Name of the pod; empty: the lock names none."""
    until: datetime


def lock_keys(allocation: Allocation, vendors: Iterable[Vendor]) -> tuple[str, ...]:
    """Return the lock annotations that the plugins of the allocation's cards use, in a fixed order.

    HAMi takes no lock for a pod whose only card is an init container's, and its plugin then guesses
    whose Allocate it answers; we take one (protocol 8.2, 10).
    """
    used = {share.vendor for container in allocation.containers for share in container.shares}
    return tuple(sorted({v.keys.lock for v in vendors if v.name in used and v.keys.lock}))


def value_of(key: str, allocation: Allocation, now: datetime) -> str:
    """Return the annotation's value for the lock of this allocation."""
    if key == NODE_LOCK:
        return encode_node_lock(
            at=now, namespace=allocation.namespace, pod_name=allocation.pod_name
        )
    return f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def holder_of(key: str, value: str, now: datetime) -> HeldLock | None:
    """Return the holder of the lock; None if it is free or expired.

    Raises: InvalidRequest when the value is no lock.
    """
    if not value:
        return None
    found = decode_node_lock(value)
    until = found.at + (HAMI_LIFETIME if key == NODE_LOCK else OWNERLESS_LIFETIME)
    if now > until:
        return None
    return HeldLock(namespace=found.namespace, pod_name=found.pod_name, until=until)


def is_owned_by(key: str, value: str, allocation: Allocation) -> bool | None:
    """Return whether the value is this allocation's; None if it names no pod."""
    try:
        found = decode_node_lock(value)
    except InvalidRequest:
        return False
    if key != NODE_LOCK or not found.names_pod:
        return None
    return (found.namespace, found.pod_name) == (allocation.namespace, allocation.pod_name)
