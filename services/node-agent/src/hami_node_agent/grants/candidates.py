"""Which grant an Allocate call means: it brings a number of ids and nothing else.

The node lock lets one pod at a time between bind and Allocate, or several of one template, so
there is mostly one candidate, or it matters little which. Where there are more, the order below is
the likeliest; PreStartContainer finds out (`ownership`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hamicommon.domain.allocations import AllocationState, ContainerGrant, footprints
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, PodUid

from hami_node_agent.grants.book import GrantBook, NodeGrant
from hami_node_agent.grants.records import Record

_EXPECTED = {
    AllocationState.BINDING: 0,
    AllocationState.BOUND: 0,
    # Only after a loss of our state or the kubelet's: it asks again for what it had.
    AllocationState.ALLOCATED: 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A container whose Allocate may be the one that came."""

    grant: NodeGrant
    container: ContainerGrant


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsSeen:
    """This node's pods as the watch has them; it may lag behind the kubelet."""

    bound: frozenset[PodUid] = frozenset()
    """Pods of this node that are not over."""
    order: Mapping[PodUid, int] = field(default_factory=lambda: MappingProxyType({}), compare=False)
    """In which order they were first seen: the kubelet's own watch has them in the same one."""
    ended: frozenset[PodUid] = frozenset()
    """Pods whose phase is terminal, or that were seen and are gone."""


def roomiest(cards: Mapping[GpuUuid, GpuDevice], book: GrantBook, count: int) -> list[GpuUuid]:
    """The healthy cards with the most memory not granted, at most `count`; ties by uuid.

    For a container whose pod is not known yet: it is granted what the kubelet gives it, if that has
    room.
    """
    granted_mib: Counter[GpuUuid] = Counter()
    for grant in book.grants.values():
        for taken in footprints(grant.containers):
            granted_mib[taken.uuid] += taken.memory_mib
    healthy = [card for card in cards.values() if card.healthy]
    healthy.sort(key=lambda card: (granted_mib[card.uuid] - card.memory_mib, card.uuid))
    return [card.uuid for card in healthy[:count]]


def of_one_template(one: ContainerGrant, other: ContainerGrant) -> bool:
    """Whether their slices differ in nothing but the cards, as far as we know: what only a vendor
    understands is a container's own."""
    pairs = zip(one.shares, other.shares, strict=False)
    return len(one.shares) == len(other.shares) and all(
        not mine.detail and not its.detail and replace(mine, uuid=its.uuid) == its
        for mine, its in pairs
    )


def next_container(grant: NodeGrant, records: Iterable[Record]) -> ContainerGrant | None:
    """The first container of the grant, in Allocate order, that has no answer yet."""
    return _unanswered(grant, _answered(records))


def _answered(records: Iterable[Record]) -> frozenset[tuple[str, str]]:
    return frozenset((record.pod_uid, record.container) for record in records)


def _unanswered(grant: NodeGrant, answered: Container[tuple[str, str]]) -> ContainerGrant | None:
    uid = grant.pod_uid
    waiting = [c for c in grant.containers if c.shares and (uid, c.name) not in answered]
    return min(waiting, key=lambda container: container.index) if waiting else None


def candidates(
    book: GrantBook, records: Iterable[Record], count: int, pods: PodsSeen
) -> list[Candidate]:
    """Containers that wait for exactly `count` ids, the likeliest first.

    A pod that has some of its answers comes first (the kubelet admits one pod at a time), then pods
    that are seen to be bound here, then the lower token (handed out in the order of binding). Of
    those like the first one, whose bindings may have overtaken each other, the first to be seen.
    """
    answered = _answered(records)
    found = []
    for grant in book.grants.values():
        # First, because on a full node it is true of all but one.
        if (container := _unanswered(grant, answered)) is None:
            continue
        if grant.answered or grant.pod_uid in pods.ended or grant.state not in _EXPECTED:
            continue
        if len(container.shares) == count:
            found.append(Candidate(grant=grant, container=container))
    begun = {uid for uid, _ in answered}
    ranks = {
        each.grant.pod_uid: (
            _EXPECTED[each.grant.state],
            each.grant.pod_uid not in begun,
            each.grant.pod_uid not in pods.bound,
        )
        for each in found
    }
    found.sort(key=lambda e: (ranks[e.grant.pod_uid], e.grant.token, e.grant.pod_uid))
    alike = [
        each
        for each in found
        if ranks[each.grant.pod_uid] == ranks[found[0].grant.pod_uid]
        and of_one_template(each.container, found[0].container)
    ]
    if len(alike) < 2:
        return found
    first = min(alike, key=lambda each: pods.order.get(each.grant.pod_uid, 0))
    return [first, *(each for each in found if each is not first)]


def repeated(
    records: Iterable[Record], device_ids: frozenset[str], candidate: Candidate | None
) -> Record | None:
    """The earlier answer, if this call can only be the same one again.

    Two containers of a pod that stay (app containers, sidecars) never share an id, so ids that one
    of the candidate's own pod holds already are a repetition. An init container's ids go on to its
    pod's next container, and a dead pod's ids to the next pod: those are new calls.
    """
    if candidate is None:
        return None
    for record in records:
        same_pod = record.pod_uid == candidate.grant.pod_uid
        both_stay = "init" not in (record.role, candidate.container.role)
        if same_pod and both_stay and record.device_ids == device_ids:
            return record
    return None
