"""State of the agent on disk: its Allocate answers, and reports that are still to be sent.

A record is one answer for one container. The kubelet keeps that answer for the pod's life, so the
record names its limits directory (by the nonce), its cards and its container.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from hamicommon.domain.allocations import AllocationState, ContainerGrant, DeviceShare
from hamicommon.domain.ids import AllocationId, GpuUuid, PodUid
from hamicommon.domain.requests import Role

from hami_node_agent.devices.mig_partition import OwnInstance
from hami_node_agent.grants.book import GrantBook, NodeGrant

# A signed grant is accepted for ten minutes; a node takes far fewer pods in that time.
MAX_TOKENS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One Allocate answer."""

    nonce: str
    device_ids: frozenset[str]
    allocation_id: AllocationId
    pod_uid: PodUid
    namespace: str
    pod_name: str
    container: str
    role: Role
    token: int
    shares: tuple[DeviceShare, ...]
    """Cards in the answer, in order, with the limits written for them."""
    policy: str = "default"
    foreign: bool = False
    """Whether HAMi's plugin gave the answer, so that its limits are in the environment."""
    plain: bool = False
    """Whether the container runs without libvgpu, as its pod has whole cards only."""
    cache_dir: str = ""
    """Name of the folder under `$HOOK_PATH/vgpu/containers`, as it was at Allocate."""
    mig_uuids: tuple[str, ...] = ()
    """MIG devices in the answer, one for each share, on cards in MIG mode."""

    @property
    def cards(self) -> tuple[GpuUuid, ...]:
        """Return the cards that the container sees."""
        return tuple(share.uuid for share in self.shares)

    def belongs_to(self, pod_uid: str, container: str) -> bool:
        """Return whether this container got the answer, under a grant."""
        return bool(self.allocation_id) and self.pod_uid == pod_uid and self.container == container


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReport:
    """Report that the bus may not have stored yet; `body` is its JSON."""

    report_id: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """State that must survive a crash: records by nonce, and reports in order."""

    records: Mapping[str, Record] = field(default_factory=lambda: MappingProxyType({}))
    reports: tuple[PendingReport, ...] = ()
    least_tokens: Mapping[PodUid, int] = field(default_factory=lambda: MappingProxyType({}))
    """Minimum token by pod: a signed grant with a lower one belongs to an earlier attempt."""
    instances: tuple[OwnInstance, ...] = ()
    """MIG instances that we created or are about to create."""

    def with_least_tokens(self, tokens: Mapping[PodUid, int]) -> AgentState:
        """Raise the minimum tokens of pods; beyond `MAX_TOKENS` only the highest are kept."""
        merged = dict(self.least_tokens)
        for uid, token in tokens.items():
            merged[uid] = max(token, merged.get(uid, token))
        if len(merged) > MAX_TOKENS:
            merged = dict(sorted(merged.items(), key=lambda known: known[1])[-MAX_TOKENS:])
        return replace(self, least_tokens=MappingProxyType(merged))

    def with_records(self, records: Iterable[Record]) -> AgentState:
        """Add or replace records."""
        merged = {**self.records, **{record.nonce: record for record in records}}
        return replace(self, records=MappingProxyType(merged))

    def without_pod(self, pod_uid: str, *, but: Container[str] = ()) -> AgentState:
        """Remove all records of a pod except those with these nonces."""
        kept = {n: r for n, r in self.records.items() if r.pod_uid != pod_uid or n in but}
        return replace(self, records=MappingProxyType(kept))

    def without_records(self, nonces: Iterable[str]) -> AgentState:
        """Remove records."""
        dropped = frozenset(nonces)
        kept = {n: r for n, r in self.records.items() if n not in dropped}
        return replace(self, records=MappingProxyType(kept))

    def with_instance(self, made: OwnInstance) -> AgentState:
        """Add an instance, replacing the one recorded for its place."""
        others = self.without_instances([made]).instances
        return replace(self, instances=(*others, made))

    def without_instances(self, gone: Iterable[OwnInstance]) -> AgentState:
        """Remove the instances recorded for the places of these."""
        places = {(each.card, each.part.start) for each in gone}
        kept = (each for each in self.instances if (each.card, each.part.start) not in places)
        return replace(self, instances=tuple(kept))

    def with_report(self, report: PendingReport) -> AgentState:
        """Queue a report, unless one with this id is queued."""
        if any(waiting.report_id == report.report_id for waiting in self.reports):
            return self
        return replace(self, reports=(*self.reports, report))

    def without_report(self, report_id: str) -> AgentState:
        """Remove a report that the bus has stored."""
        return replace(
            self, reports=tuple(report for report in self.reports if report.report_id != report_id)
        )

    def has_answered(self, grant: NodeGrant, container: str) -> bool:
        """Return whether the container has its answer under this grant."""
        return any(
            record.allocation_id == grant.allocation_id and record.container == container
            for record in self.records.values()
        )

    def of_pod(self, pod_uid: str) -> tuple[Record, ...]:
        """Return the records of one pod."""
        return tuple(record for record in self.records.values() if record.pod_uid == pod_uid)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsSeen:
    """Pods of this node as the watch has them, which may lag behind the kubelet."""

    ended: frozenset[PodUid] = frozenset()
    """Pods with a terminal phase, or that were deleted."""
    bound: frozenset[PodUid] = frozenset()
    """Pods that are bound to this node."""


class InFlight(NamedTuple):
    """Grant between its binding and its answers, with the container that is next."""

    grant: NodeGrant
    container: ContainerGrant


UNANSWERED = frozenset({AllocationState.BINDING, AllocationState.BOUND})


def grants_in_flight(book: GrantBook, saved: AgentState, seen: PodsSeen) -> list[InFlight]:
    """Return the grants for which the kubelet has not called Allocate yet.

    A grant that the ledger lists as `binding` may still wait for the lock. It is on its way once it
    was offered, or its pod is on the node: an agent that was restarted remembers no offer.
    """
    answered = {(record.allocation_id, record.container) for record in saved.records.values()}
    found = []
    for grant in book.grants.values():
        is_bound = grant.offered or grant.pod_uid in seen.bound
        is_coming = is_bound and not grant.answered and grant.state in UNANSWERED
        if not is_coming or grant.pod_uid in seen.ended:
            continue
        for container in grant.device_containers:
            if (grant.allocation_id, container.name) not in answered:
                found.append(InFlight(grant, container))
                break
    return found


def find_in_flight(book: GrantBook, saved: AgentState, seen: PodsSeen) -> InFlight | None:
    """Return the grant in flight.

    The node lock lets one pod at a time be on its way. If it was lost there are several: the
    kubelet finishes a pod that it has begun, and is likely to admit the one that was bound first.
    """

    def turn(each: InFlight) -> tuple[bool, int]:
        return each.container == each.grant.device_containers[0], each.grant.token

    return min(grants_in_flight(book, saved, seen), key=turn, default=None)


def is_complete(grant: NodeGrant, records: Iterable[Record]) -> bool:
    """Return whether every container with cards in the grant has its answer.

    The slices that it has together with another count as one.
    """
    known = tuple(records)
    answered = {record.container for record in known if record.pod_uid == grant.pod_uid}
    nonces = {record.nonce for record in known}
    return all(
        container.name in answered or grant.slices.get(container.name) in nonces
        for container in grant.device_containers
    )


# Several containers and pods may share slices by ResourceClaims. They have one record, with one
# limits directory and account: that of the first container that was prepared. Only the book knows
# the others, until the first one's grant has ended and the record passes to one of them.


def shared_records(
    records: Mapping[str, Record], book: GrantBook
) -> dict[tuple[str, str], tuple[str, str]]:
    """Return (pod uid, container) that shares slices -> the one that has their record."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for nonce, grant, container in book.slices():
        record = records.get(nonce)
        if record is not None and not record.belongs_to(grant.pod_uid, container):
            found[grant.pod_uid, container] = (record.pod_uid, record.container)
    return found


def pods_sharing(records: Mapping[str, Record], book: GrantBook) -> dict[str, frozenset[str]]:
    """Return nonce -> uids of all pods with those slices, if there are several."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for nonce, grant, _ in book.slices():
        if nonce in records:
            found[nonce] |= {grant.pod_uid, records[nonce].pod_uid}
    return {nonce: frozenset(uids) for nonce, uids in found.items() if len(uids) > 1}


def passed_on(saved: AgentState, book: GrantBook) -> AgentState:
    """Return records of ended grants as records of other pods with the same slices."""
    changed = []
    for nonce, grant, container in book.slices():
        record = saved.records.get(nonce)
        if record is not None and book.of(record.pod_uid) is None:
            changed.append(_of(record, grant, container))
    return saved.with_records(changed) if changed else saved


def _of(record: Record, grant: NodeGrant, container: str) -> Record:
    return replace(
        record,
        allocation_id=grant.allocation_id,
        pod_uid=grant.pod_uid,
        namespace=grant.namespace,
        pod_name=grant.pod_name,
        container=container,
        token=grant.token,
    )
