"""Grants of this node in memory, updated by the bus, the ledger's snapshot, and annotations.

A `GrantBook` is a value: every message makes a new one. A grant with a lower token never replaces
one with a higher token, and no message brings a withdrawn one back, in whatever order they arrive.
The ledger does: it may have been restored from a backup that has the grant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hamicommon.domain.allocations import AllocationState, ContainerGrant
from hamicommon.domain.ids import AllocationId, PodUid

# Withdrawals are remembered only against messages that overtake them: seconds, so a thousand do.
MAX_WITHDRAWN = 1000
OVERTAKEN_S = 5.0
"""Time after a withdrawal within which a snapshot may be older than the withdrawal."""


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Withdrawal of an allocation up to a token."""

    token: int
    heard_at: float
    """Monotonic time at which this agent received it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGrant:
    """Slices of one pod on this node."""

    allocation_id: AllocationId
    pod_uid: PodUid
    namespace: str
    pod_name: str
    token: int
    containers: tuple[ContainerGrant, ...]
    state: AllocationState = AllocationState.BINDING
    traceparent: str = ""
    offered: bool = False
    """Whether the scheduler has sent the pod here: it has the lock, is bound, or has it signed."""
    answered: bool = False
    """Whether the kubelet got its answers before this grant, so that no Allocate will come."""
    claimed: bool = False
    """Whether the grant is for ResourceClaims (`dra/`)."""
    slices: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Name of each container's slices by ResourceClaims, which is their nonce; may be shared."""
    heard_at: float = 0.0
    """Monotonic time at which this agent received it."""

    @property
    def device_containers(self) -> tuple[ContainerGrant, ...]:
        """Return the containers for which the kubelet will call Allocate, in that order."""
        wanting = (container for container in self.containers if container.shares)
        return tuple(sorted(wanting, key=lambda container: container.index))

    def container(self, name: str) -> ContainerGrant | None:
        """Return the slices of the container called `name`, or None if it has none."""
        return next((c for c in self.device_containers if c.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantBook:
    """Live grants by pod uid, and withdrawals."""

    grants: Mapping[PodUid, NodeGrant] = field(default_factory=lambda: MappingProxyType({}))
    withdrawn: Mapping[AllocationId, Withdrawal] = field(
        default_factory=lambda: MappingProxyType({})
    )
    whole: bool = False
    """Whether the ledger has sent all grants of this node, so that a missing one has ended."""

    def of(self, pod_uid: str) -> NodeGrant | None:
        """Return the grant of a pod."""
        return self.grants.get(PodUid(pod_uid))

    def slices(self) -> Iterator[tuple[str, NodeGrant, str]]:
        """Yield (nonce, grant, container) for all slices by ResourceClaims."""
        for grant in self.grants.values():
            for container, nonce in grant.slices.items():
                yield nonce, grant, container

    def with_grant(self, grant: NodeGrant) -> GrantBook:
        """Return the book with this grant, unless it has a newer one."""
        if self._is_withdrawn(grant):
            return self
        known = self.grants.get(grant.pod_uid)
        if known is not None and (known.token, known.offered) >= (grant.token, grant.offered):
            return self
        return replace(self, grants=MappingProxyType({**self.grants, grant.pod_uid: grant}))

    def without(
        self, allocation_id: AllocationId, pod_uid: PodUid, token: int, *, heard_at: float
    ) -> GrantBook:
        """Return the book without the allocation, unless it has a higher token."""
        before = self.withdrawn.get(allocation_id)
        highest = token if before is None else max(token, before.token)
        marks = {**self.withdrawn, allocation_id: Withdrawal(highest, heard_at)}
        for oldest in list(marks)[: max(0, len(marks) - MAX_WITHDRAWN)]:
            del marks[oldest]
        known = self.grants.get(pod_uid)
        grants = self.grants
        if known is not None and known.allocation_id == allocation_id and known.token <= token:
            grants = MappingProxyType({k: v for k, v in grants.items() if k != pod_uid})
        return replace(self, grants=grants, withdrawn=MappingProxyType(marks))

    def reset_to(
        self, snapshot: Iterable[NodeGrant], *, complete: bool, asked_at: float
    ) -> GrantBook:
        """Return the book with the ledger's answer in place of everything older than the question.

        An incomplete snapshot only adds. A grant heard since stays, whatever the snapshot has. A
        grant that the ledger still has seconds after its withdrawal lives: the ledger is the truth.
        """
        newer = {
            uid: grant
            for uid, grant in self.grants.items()
            if not complete or grant.heard_at >= asked_at
        }
        listed = {
            grant.pod_uid: replace(grant, offered=grant.offered or self._was_offered(grant))
            for grant in snapshot
            if not self._is_withdrawn(grant, since=asked_at - OVERTAKEN_S)
        }
        merged = dict(listed)
        for uid, grant in newer.items():
            if uid not in listed or listed[uid].token < grant.token:
                merged[uid] = grant
        return replace(self, grants=MappingProxyType(merged), whole=self.whole or complete)

    def _was_offered(self, grant: NodeGrant) -> bool:
        known = self.grants.get(grant.pod_uid)
        return known is not None and known.offered and known.allocation_id == grant.allocation_id

    def _is_withdrawn(self, grant: NodeGrant, *, since: float = -math.inf) -> bool:
        """Return whether a withdrawal received since then withdraws the grant."""
        over = self.withdrawn.get(grant.allocation_id)
        return over is not None and grant.token <= over.token and over.heard_at > since
