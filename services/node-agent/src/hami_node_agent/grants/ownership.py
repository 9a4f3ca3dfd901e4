"""Who really got an answer: the decision at PreStartContainer.

The kubelet's Allocate does not name its pod, so `candidates.py` may have taken one pod for
another. Before every start the kubelet's own state shows who holds the ids. In: those holdings, our
records and the grants. Out: a `Verdict` as data; `prestart.py` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.ids import AllocationId, GpuUuid, PodUid

from hami_node_agent.grants.book import GrantBook, NodeGrant
from hami_node_agent.grants.kubelet_answers import Holding, KeptAnswer
from hami_node_agent.grants.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """The limits in the answer are the owner's own."""

    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassigned:
    """The answer went to another container, which has a grant: its limits go into it.

    Whether its cards can hold that the ledger decides (`device_moves.py`).
    """

    after: Record
    grant: NodeGrant

    @property
    def granted(self) -> ContainerGrant:
        """What the owner was granted."""
        found = self.grant.container(self.after.container)
        assert found is not None
        return found

    @property
    def granted_cards(self) -> frozenset[GpuUuid]:
        """Where the ledger counts the owner."""
        return frozenset(share.uuid for share in self.granted.shares)

    @property
    def moved(self) -> bool:
        """True when the container would run on other cards than the ledger thinks."""
        return sorted(share.uuid for share in self.granted.shares) != sorted(self.after.cards)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedHolding:
    """The container must not start."""

    holding: Holding
    reason: str
    grant: NodeGrant | None = None


Verdict = Confirmed | Reassigned | RefusedHolding


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
    # An init container and the containers after it may share ids; without the checkpoint only
    # containers that stay are seen, so the answer of one that stays is the one meant.
    staying = [r for r in same_ids if r.role != "init"]
    return next(iter(own or staying or same_ids), None)


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
        # With the library comes its directory.
        plain=bool(answer.cards) and not answer.cache_dir,
        cache_dir=answer.cache_dir,
    )


def verdict(
    holding: Holding,
    *,
    records: Sequence[Record],
    book: GrantBook,
) -> Verdict:
    """Decides whether the container that holds these ids may start, and with which limits."""
    record = record_of(holding, records)
    grant = book.of(holding.pod_uid)
    if record is None:
        reason = _UNKNOWN_ANSWER if holding.foreign is None else _FOREIGN_ANSWER
        return RefusedHolding(holding=holding, grant=grant, reason=reason)
    # An answer of an attempt that failed, because the bus was late with the next one, is not its
    # pod's own any more.
    current = grant is None or grant.allocation_id == record.allocation_id
    if current and record.belongs_to(holding.pod_uid, holding.container):
        return Confirmed(record=record)
    if grant is None:
        return RefusedHolding(holding=holding, reason=_NO_GRANT)
    granted = grant.container(holding.container)
    if granted is None or len(granted.shares) != len(record.shares):
        wanted = 0 if granted is None else len(granted.shares)
        reason = (
            f"the kubelet gave container {holding.container} {len(record.shares)} cards and its "
            f"grant has {wanted}; {TRY_AGAIN}"
        )
        return RefusedHolding(holding=holding, grant=grant, reason=reason)
    return Reassigned(after=reassigned(record, grant, granted), grant=grant)


TRY_AGAIN = "delete the pod, its controller makes a new one"
_UNKNOWN_ANSWER = (
    "the agent does not know the answer that this container holds (its state was lost, or another "
    "plugin gave it); delete the pod, its controller makes a new one"
)
_FOREIGN_ANSWER = (
    "another device plugin gave this container its devices and the ledger has no grant of them; "
    "`hamictl adopt` gives the reason and, with --apply, takes HAMi's pods over, after "
    "which the container "
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


def cards_for(shares: Sequence[DeviceShare], cards: Sequence[GpuUuid]) -> tuple[GpuUuid, ...]:
    """For each slice its card: its own where that is in the answer, else one of those left over.

    As many cards as slices; a card may be there several times.
    """
    left = list(cards)
    own: list[GpuUuid | None] = []
    for share in shares:
        kept = share.uuid if share.uuid in left else None
        own.append(kept)
        if kept is not None:
            left.remove(kept)
    return tuple(left.pop(0) if card is None else card for card in own)


def _onto(cards: Sequence[GpuUuid], shares: Sequence[DeviceShare]) -> tuple[DeviceShare, ...]:
    """The slices as `cards_for` places them, in the order of the answer."""
    placed = [
        replace(share, uuid=card)
        for share, card in zip(shares, cards_for(shares, cards), strict=True)
    ]
    ordered = []
    for card in cards:
        found = next(index for index, share in enumerate(placed) if share.uuid == card)
        ordered.append(placed.pop(found))
    return tuple(ordered)


def others_astray(
    owner: Reassigned,
    *,
    records: Sequence[Record],
    holdings: Iterable[Holding],
    book: GrantBook,
) -> tuple[Reassigned, ...]:
    """The other containers that hold an answer with other cards than granted, as far as the kubelet
    shows them. It was meant for somebody else, so none of them has started.
    """
    return tuple(
        change
        for holding in holdings
        if isinstance(change := verdict(holding, records=records, book=book), Reassigned)
        and change.moved
        and not _same_container(change, owner)
    )


def partners_of(owner: Reassigned, astray: Iterable[Reassigned]) -> tuple[Reassigned, ...]:
    """Those that are to leave the cards that the owner needs.

    A container that is granted a card that one of them needs in turn comes along.
    """
    left = list(astray)
    found: list[Reassigned] = []
    needed = set(owner.after.cards)
    while leaving := [change for change in left if needed & change.granted_cards]:
        found += leaving
        left = [change for change in left if change not in leaving]
        needed |= {card for change in leaving for card in change.after.cards}
    return tuple(found)


def displaced(change: Reassigned, records: Mapping[str, Record]) -> tuple[Record, ...]:
    """The answer that was meant for the new owner, kept for the container that lost its own to it.

    The other one has the new owner's answer, or a third one's, until its own PreStartContainer.
    Until then it must not look like one that waits for an answer: the next Allocate, of some other
    pod, would be given a second one for it.
    """
    owner, before = change.after, records.get(change.after.nonce)
    if before is None or not before.pod_uid:
        return ()
    if any(
        record.nonce != before.nonce and record.counts_for(before.pod_uid, before.container)
        for record in records.values()
    ):
        return ()
    return tuple(
        record.lost_to(
            before.pod_uid,
            before.container,
            namespace=before.namespace,
            pod_name=before.pod_name,
        )
        for record in records.values()
        if record.nonce != owner.nonce
        and record.allocation_id in (owner.allocation_id, "")
        and record.counts_for(owner.pod_uid, owner.container)
    )[:1]


def _same_container(one: Reassigned, other: Reassigned) -> bool:
    return one.after.belongs_to(other.after.pod_uid, other.after.container)
