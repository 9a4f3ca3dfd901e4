"""The grants of this node as the agent knows them, fed by the bus, the snapshot and annotations.

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
"""A snapshot that was asked for so soon after a withdrawal may be of before it."""


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Withdrawal of an allocation up to a token, and when this agent learned of it."""

    token: int
    heard_at: float
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGrant:
    """One pod's slices on this node."""

    allocation_id: AllocationId
    pod_uid: PodUid
    namespace: str
    pod_name: str
    token: int
    containers: tuple[ContainerGrant, ...]
    state: AllocationState = AllocationState.BINDING
    traceparent: str = ""
    offered: bool = False
    """Whether its pod has the lock or was bound: the scheduler sent it here, or signed it on the
    pod. The ledger has grants that still wait for the lock."""
    answered: bool = False
    """The kubelet had its answers before the grant was made: no Allocate will come for it."""
    claimed: bool = False
    """Whether it is of ResourceClaims (`dra/`)."""
    slices: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """By container: the name of the slices that it has by ResourceClaims, which is their nonce;
    others may have the same."""
    heard_at: float = 0.0
    """Monotonic seconds when this agent heard of it."""

    @property
    def device_containers(self) -> tuple[ContainerGrant, ...]:
        """Containers for which the kubelet will call Allocate, in the order in which it will."""
        wanting = (container for container in self.containers if container.shares)
        return tuple(sorted(wanting, key=lambda container: container.index))

    def container(self, name: str) -> ContainerGrant | None:
        """The slices of the container called `name`, or None if it has none."""
        return next((c for c in self.device_containers if c.name == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantBook:
    """Live grants by pod uid, and what was withdrawn."""

    grants: Mapping[PodUid, NodeGrant] = field(default_factory=lambda: MappingProxyType({}))
    withdrawn: Mapping[AllocationId, Withdrawal] = field(
        default_factory=lambda: MappingProxyType({})
    )
    whole: bool = False
    """The ledger has sent all grants of this node: one that is not here has ended."""

    def of(self, pod_uid: str) -> NodeGrant | None:
        """The grant of a pod."""
        return self.grants.get(PodUid(pod_uid))

    def slices(self) -> Iterator[tuple[str, NodeGrant, str]]:
        """(Nonce, grant, container) of all that is had by ResourceClaims."""
        for grant in self.grants.values():
            for container, nonce in grant.slices.items():
                yield nonce, grant, container

    def announced(self, grant: NodeGrant) -> GrantBook:
        """Add a grant, unless it is older than what is known."""
        if self._is_withdrawn(grant):
            return self
        known = self.grants.get(grant.pod_uid)
        if known is not None and (known.token, known.offered) >= (grant.token, grant.offered):
            return self
        return replace(self, grants=MappingProxyType({**self.grants, grant.pod_uid: grant}))

    def without(
        self, allocation_id: AllocationId, pod_uid: PodUid, token: int, *, heard_at: float
    ) -> GrantBook:
        """Take a grant back; one with a higher token stays."""
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
        """Replace all that was heard before the ledger was asked by its answer.

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
        """Whether a withdrawal that was heard of since then counts against the grant."""
        over = self.withdrawn.get(grant.allocation_id)
        return over is not None and grant.token <= over.token and over.heard_at > since
