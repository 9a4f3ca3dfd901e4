"""Nodes and cards for the pods of a group: for as many as must start together, or for none.

Input: the members' requests in kube-scheduler's order, the number that is needed, the cards, and
the nodes. Output: a `GroupDecision` with the placements, or with the first member that does not fit
and the reason. Pure: the view's counters are changed while members are placed and then restored, so
no other code may read the view until it returns. Only two orders are tried: a refusal is right for
the order that it names.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from hamicommon.domain.allocations import Placement
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide
from hamicommon.placement.unschedulable import Refusal
from hamicommon.placement.walks.walked import shape_key


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDecision:
    """Placements of a group's members, and the first member without a placement."""

    needed: int
    members: tuple[PodRequest, ...]
    """Members in the order in which they were placed."""
    placements: Mapping[PodUid, Placement]
    first_refused: PodRequest | None = None
    refusal: Refusal | None = None
    """Reasons for refusing `first_refused` after the members before it were placed."""

    @property
    def fits(self) -> bool:
        """Whether as many members as required have a placement."""
        return len(self.placements) >= self.needed


def decide_group(
    members: Sequence[PodRequest],
    view: ClusterView,
    *,
    needed: int,
    offered: Collection[NodeName] | None = None,
    elsewhere: Collection[NodeName] = (),
    asking: PodUid | None = None,
) -> GroupDecision:
    """Place the members in order, counting the placements of earlier members on the cards.

    Args:
        members: in kube-scheduler's order. If it fails, the largest are tried first.
        view: the cards; changed while members are placed, and put back.
        needed: so many of them must fit; the others are placed if they do.
        offered: nodes that are tried first; None: all.
        elsewhere: nodes that a member may go to if no offered one takes it.
        asking: member that may go to offered nodes only.

    Raises: InvalidRequest when a member asks for no card.
    """
    found = _placed_in_order(members, view, needed, offered, elsewhere, asking)
    largest_first = sorted(members, key=_size, reverse=True)
    if found.fits or largest_first == list(members):
        return found
    other = _placed_in_order(largest_first, view, needed, offered, elsewhere, asking)
    return other if other.fits else found


def _placed_in_order(
    members: Sequence[PodRequest],
    view: ClusterView,
    needed: int,
    offered: Collection[NodeName] | None,
    elsewhere: Collection[NodeName],
    asking: PodUid | None,
) -> GroupDecision:
    placements: dict[PodUid, Placement] = {}
    # What one pod was refused, others like it are refused: the cards only become fewer.
    full: set[tuple[Hashable, bool]] = set()
    first_refused: tuple[PodRequest, Refusal] | None = None
    with ExitStack() as placed:
        for member in members:
            roams = member.uid != asking
            shape = shape_key(member), roams
            if shape in full:
                continue
            decision = decide(member, view, candidates=offered)
            if decision.placement is None and roams and elsewhere:
                decision = decide(member, view, candidates=elsewhere)
            if decision.placement is None:
                assert decision.refusal is not None
                full.add(shape)
                first_refused = first_refused or (member, decision.refusal)
                continue
            placements[member.uid] = decision.placement
            placed.enter_context(_count_temporarily(view, decision.placement))
    return GroupDecision(
        needed=needed,
        members=tuple(members),
        placements=placements,
        first_refused=first_refused[0] if first_refused else None,
        refusal=first_refused[1] if first_refused else None,
    )


@contextmanager
def _count_temporarily(view: ClusterView, placement: Placement) -> Iterator[None]:
    """Count the placement on its cards inside a block."""
    _count(view, placement, 1)
    try:
        yield
    finally:
        _count(view, placement, -1)


def _count(view: ClusterView, placement: Placement, sign: int) -> None:
    shares = [share for container in placement.containers for share in container.shares]
    for card in placement.footprints():
        details = [each.detail for each in shares if each.uuid == card.uuid and each.detail]
        view.shift(
            card.uuid,
            slots=sign * card.slots,
            memory_mib=sign * card.memory_mib,
            core_percent=sign * card.core_percent,
            added=details if sign > 0 else (),
            dropped=details if sign < 0 else (),
        )


def _size(request: PodRequest) -> tuple[int, ...]:
    """Return a sort key, largest first: cards, then memory and cores on one card."""
    wanted = [each for container in request.containers for each in container.requests]
    return (
        sum(each.count for each in wanted),
        max((each.memory_percent or 0 for each in wanted), default=0),
        max((each.memory_mib for each in wanted), default=0),
        max((each.core_percent for each in wanted), default=0),
    )
