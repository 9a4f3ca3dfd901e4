"""Who really got an answer: the decision at PreStartContainer.

The kubelet's Allocate does not say for whom it asks, so `choosing.py` may have taken one pod for
another. Before every start the kubelet's own books tell who holds the ids. In: those holdings, our
records, the grants and the cards. Out: a `Verdict` as data; `prestarting.py` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid5

from hamicommon.domain.allocations import ContainerGrant, DeviceShare, footprints
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import AllocationId, GpuUuid, PodUid

from hami_node_agent.domain.grants import GrantBook, NodeGrant
from hami_node_agent.domain.records import Record
from hami_node_agent.domain.replicas import card_of


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """What our answer says, as the kubelet keeps it in its checkpoint."""

    nonce: str
    cards: tuple[GpuUuid, ...]
    cache_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignAnswer:
    """What another device plugin's answer says (HAMi's, before us), as the kubelet keeps it."""

    visible: tuple[str, ...]
    """Cards that the container sees, as the plugin names them: uuids, indexes or MIG uuids."""
    memory_mib: tuple[int, ...]
    """HAMi's limit for each visible card, by position; empty: the answer is none of HAMi's."""
    core_percent: int | None
    cache_dir: str
    """Name of the directory with its shared region, under `$HOOK_PATH/vgpu/containers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What the kubelet says of one container: which ids it holds, and our answer's nonce."""

    pod_uid: str
    container: str
    device_ids: frozenset[str]
    namespace: str = ""
    pod_name: str = ""
    answer: KeptAnswer | None = None
    """Ours. None where only PodResources is there: it does not show answers."""
    foreign: ForeignAnswer | None = None
    """Another plugin's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """The limits in the answer are the owner's own."""

    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassigned:
    """The answer went to another container, which has a grant: its limits go into it."""

    after: Record
    grant: NodeGrant

    @property
    def moved(self) -> bool:
        """True when the container runs on other cards than the ledger thinks."""
        granted = self.grant.container(self.after.container)
        return granted is not None and {s.uuid for s in granted.shares} != set(self.after.cards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The container must not start."""

    holding: Holding
    reason: str
    grant: NodeGrant | None = None


Verdict = Confirmed | Reassigned | Refused


def record_of(holding: Holding, records: Iterable[Record]) -> Record | None:
    """The answer that the container holds: by nonce, else by ids (its own before another's).

    One that is only in the kubelet's checkpoint (our state was lost) comes back as nobody's.
    """
    answered = tuple(records)
    if holding.answer is not None:
        nonce = holding.answer.nonce
        known = next((r for r in answered if r.nonce == nonce), None)
        return known or _nobodys(holding, holding.answer)
    same_ids = [r for r in answered if r.device_ids == holding.device_ids]
    own = [r for r in same_ids if r.belongs_to(holding.pod_uid, holding.container)]
    if holding.foreign is not None:
        # Not ours: an earlier owner's answer of ours is not the one that this container holds.
        return next((r for r in own if r.foreign), None)
    # An init container and the app containers after it may share ids; without the checkpoint only
    # app containers are seen, so an app container's answer is the one meant.
    app = [r for r in same_ids if r.role == "app"]
    return next(iter(own or app or same_ids), None)


def _nobodys(holding: Holding, answer: KeptAnswer) -> Record:
    return Record(
        nonce=answer.nonce,
        device_ids=holding.device_ids,
        allocation_id=AllocationId(""),
        pod_uid=PodUid(""),
        namespace="",
        pod_name="",
        container="",
        role="app",
        token=0,
        shares=tuple(
            DeviceShare(uuid=card, vendor="NVIDIA", memory_mib=0, core_percent=0)
            for card in answer.cards
        ),
        cache_dir=answer.cache_dir,
    )


def verdict(
    holding: Holding,
    *,
    records: Sequence[Record],
    holdings: Sequence[Holding],
    book: GrantBook,
    cards: Mapping[GpuUuid, GpuDevice],
) -> Verdict:
    """Decides whether the container that holds these ids may start, and with which limits."""
    record = record_of(holding, records)
    grant = book.of(holding.pod_uid)
    if record is None:
        reason = _UNKNOWN_ANSWER if holding.foreign is None else _FOREIGN_ANSWER
        return Refused(holding=holding, grant=grant, reason=reason)
    # An answer of an attempt that failed, because the bus was late with the next one, is not its
    # pod's own any more.
    current = grant is None or grant.allocation_id == record.allocation_id
    if current and record.belongs_to(holding.pod_uid, holding.container):
        return Confirmed(record=record)
    if grant is None:
        return Refused(holding=holding, reason=_NO_GRANT)
    granted = grant.container(holding.container)
    if granted is None or len(granted.shares) != len(record.shares):
        wanted = 0 if granted is None else len(granted.shares)
        reason = (
            f"the kubelet gave container {holding.container} {len(record.shares)} cards and its "
            f"grant has {wanted}; {_TRY_AGAIN}"
        )
        return Refused(holding=holding, grant=grant, reason=reason)
    after = reassigned(record, grant, granted)
    overfull = _overfull(after, records=records, holdings=holdings, book=book, cards=cards)
    if overfull:
        return Refused(holding=holding, grant=grant, reason=overfull)
    return Reassigned(after=after, grant=grant)


_UNKNOWN_ANSWER = (
    "the agent does not know the answer that this container holds (its state was lost, or another "
    "plugin gave it); delete the pod, its controller makes a new one"
)
_FOREIGN_ANSWER = (
    "another device plugin gave this container its devices and the ledger has no grant of them; "
    "`hamictl adopt` says why and, with --apply, takes HAMi's pods over, after which the container "
    "starts by itself; otherwise delete the pod, its controller makes a new one"
)
_NO_GRANT = (
    "the pod took devices without a grant of HAMi's scheduler; remove spec.nodeName or set "
    "spec.schedulerName to HAMi's scheduler, and make the pod again"
)


def reassigned(record: Record, grant: NodeGrant, granted: ContainerGrant) -> Record:
    """The record with the owner's slices written for the cards that are in the answer."""
    return replace(
        record,
        allocation_id=grant.allocation_id,
        pod_uid=grant.pod_uid,
        namespace=grant.namespace,
        pod_name=grant.pod_name,
        container=granted.name,
        role=granted.role,
        token=grant.token,
        shares=_onto(record.cards, granted.shares),
        provisional=False,
    )


def _onto(cards: Sequence[GpuUuid], shares: Sequence[DeviceShare]) -> tuple[DeviceShare, ...]:
    """Each slice on its own card where that is in the answer, the others on the cards left over."""
    by_card = {share.uuid: share for share in shares if share.uuid in cards}
    rest = iter([share for share in shares if share.uuid not in by_card])
    return tuple(by_card.get(card) or replace(next(rest), uuid=card) for card in cards)


def _overfull(
    after: Record,
    *,
    records: Sequence[Record],
    holdings: Sequence[Holding],
    book: GrantBook,
    cards: Mapping[GpuUuid, GpuDevice],
) -> str:
    """Why the cards of `after` can't hold everybody once it is there; empty when they can."""
    really = _shares_really(after, records=records, holdings=holdings, book=book)
    pods = [
        [
            replace(container, shares=really.get((grant.pod_uid, container.name), container.shares))
            for container in grant.device_containers
        ]
        for grant in book.grants.values()
    ]
    for uuid in after.cards:
        card = cards.get(uuid)
        if card is None:
            return f"card {uuid} is not on this node any more; delete the pod"
        reason = _no_room(card, pods)
        if reason:
            return f"the kubelet gave the container {reason}; {_TRY_AGAIN}"
    return ""


_TRY_AGAIN = "delete the pod, its controller makes a new one"


def _no_room(card: GpuDevice, pods: Sequence[Sequence[ContainerGrant]]) -> str:
    held = [f for pod in pods for f in footprints(pod) if f.uuid == card.uuid]
    slots = sum(footprint.slots for footprint in held)
    memory_mib = sum(footprint.memory_mib for footprint in held)
    core_percent = sum(footprint.core_percent for footprint in held)
    # Rule 13 of protocol sheet 1.0.4: who has all the cores of a card has it alone.
    alone = any(
        share.core_percent >= 100 and share.uuid == card.uuid
        for pod in pods
        for container in pod
        for share in container.shares
    )
    if alone and slots > 1 and card.core_percent == 100:
        return f"card {card.uuid}, of which somebody has all cores"
    if slots <= card.slots and memory_mib <= card.memory_mib and core_percent <= card.core_percent:
        return ""
    return (
        f"card {card.uuid}, which has no room for it ({memory_mib} of {card.memory_mib} MiB, "
        f"{core_percent} of {card.core_percent} percent of the cores and {slots} of {card.slots} "
        "slots would be held)"
    )


def _shares_really(
    after: Record, *, records: Sequence[Record], holdings: Sequence[Holding], book: GrantBook
) -> dict[tuple[str, str], tuple[DeviceShare, ...]]:
    """Slices by (pod, container), where the kubelet's books show other cards than granted."""
    really: dict[tuple[str, str], tuple[DeviceShare, ...]] = {}
    for holding in holdings:
        grant, record = book.of(holding.pod_uid), record_of(holding, records)
        granted = grant.container(holding.container) if grant else None
        if record is None or granted is None or len(granted.shares) != len(record.shares):
            continue
        really[holding.pod_uid, holding.container] = _onto(record.cards, granted.shares)
    really[after.pod_uid, after.container] = after.shares
    return really


def foreign_records(
    book: GrantBook, holdings: Iterable[Holding], records: Iterable[Record]
) -> list[Record]:
    """Records for answers of HAMi's that the ledger adopted and that we have not recorded yet.

    An answer that shows other cards than were adopted gets none: its container may not start.
    """
    known = {(record.pod_uid, record.container) for record in records if record.allocation_id}
    found = []
    for holding in holdings:
        grant = book.of(holding.pod_uid)
        granted = grant.container(holding.container) if grant and grant.answered else None
        if grant is None or granted is None or holding.answer is not None:
            continue
        if (holding.pod_uid, holding.container) not in known and _shows(holding, granted):
            found.append(_foreign(holding, grant, granted))
    return found


def _shows(holding: Holding, granted: ContainerGrant) -> bool:
    if holding.foreign is not None:
        shown = set(holding.foreign.visible)
    else:
        # Only PodResources could be read: adopted then were the cards of the ids.
        shown = {str(card_of(device_id)) for device_id in holding.device_ids}
    return shown == {str(share.uuid) for share in granted.shares}


def _foreign(holding: Holding, grant: NodeGrant, granted: ContainerGrant) -> Record:
    name = f"{holding.pod_uid}_{holding.container}"
    return Record(
        nonce=str(uuid5(_FOREIGN, name)),
        device_ids=holding.device_ids,
        allocation_id=grant.allocation_id,
        pod_uid=grant.pod_uid,
        namespace=grant.namespace,
        pod_name=grant.pod_name,
        container=granted.name,
        role=granted.role,
        token=grant.token,
        shares=granted.shares,
        foreign=True,
        cache_dir=name if holding.foreign is None else holding.foreign.cache_dir,
    )


_FOREIGN = UUID("c5d9a1de-5b0e-4c0f-9a53-5b8c8f0f9d11")
"""Namespace of nonces of answers that have none; any constant will do."""
