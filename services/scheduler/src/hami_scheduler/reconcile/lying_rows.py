"""Find and repair rows of grants that contradict other evidence.

A row is compared with three kinds of evidence. Its events, which can't be changed and are written
with it: its state and its pod are those of its last event. The grant that we signed, which its pod
carries: node, names, containers and amounts are those of the grant. The kubelet's choice, which is
in the events as a move: the cards are those of the last move, otherwise those that were signed.
What a user writes is no evidence: only a grant counts that is signed for this pod and row. The
annotations in the row are those that vendors write for its slices.

Repairs are in the drift journal (`row-contradicts-history`, `row-contradicts-grant`,
`row-without-end`), and so is a running pod whose row has no slices and whose grant can't be read.
`CounterRepairer` repairs cards whose counters are not the sum of their live grants, and sequences
at their end or behind their rows, with a line in the journal for each (`card-counters`,
`number-sequence`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from hamicommon.clipping import clip
from hamicommon.domain.allocations import Allocation, AllocationState, ContainerGrant, Origin
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.errors import InvalidRequest
from hamicommon.grants.grant import Grant
from hamicommon.k8s.annotations import GRANT, annotations_of
from hamicommon.k8s.types import JsonMapping

from hami_scheduler.drift import Drift, subject_of
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.ledger.state_machine import facts_of
from hami_scheduler.ports.ledger import RepairedRow

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.row_repairs import PostgresCounters, PostgresRowRepairs

HISTORY_CLASS = "row-contradicts-history"
GRANT_CLASS = "row-contradicts-grant"
ENDLESS_CLASS = "row-without-end"
EMPTY_CLASS = "row-without-slices"
REASON = "its row differed from its signed grant and was restored from it"
# All rows of a small cluster in each round, those of a large one in turn.
MAX_LOOKS = 256
_ON_NODE = frozenset({AllocationState.BOUND, AllocationState.ALLOCATED})


@dataclass(eq=False, kw_only=True)
class LyingRows:
    """Compare rows with other evidence.

    `misread`: which of the row's annotations name other slices, as they should be;
        `longest_s`: no state with an end lasts longer.
    """

    store: PostgresRowRepairs
    drift: Drift
    read_signed: Callable[[str], Grant]
    misread: Callable[[Allocation, JsonMapping], Mapping[str, str]]
    annotate: Callable[[AllocationId, int, Mapping[str, str]], Awaitable[bool]]
    longest_s: float
    _looked: set[PodUid] = field(default_factory=set, init=False)
    """Pods that were checked in this pass through all rows."""
    _looks: int = field(default=0, init=False)
    _empty: set[PodUid] = field(default_factory=set, init=False)

    async def by_history(self) -> int:
        """Repair rows that contradict their events; return their number.

        Raises: Conflict, Unavailable.
        """
        rows = await self.store.repair_by_history()
        await self._note(HISTORY_CLASS, rows)
        names = await self.store.repair_names()
        await self._note(GRANT_CLASS, names)
        endless = await self.store.repair_deadlines(self.longest_s)
        await self._note(ENDLESS_CLASS, endless)
        return len(rows) + len(names) + len(endless)

    async def put_back(self, allocation_id: AllocationId) -> bool:
        """Make a row that ended without an event live again; return whether it was one.

        Raises: Conflict, Unavailable.
        """
        rows = await self.store.put_back(allocation_id)
        await self._note(HISTORY_CLASS, rows)
        return bool(rows)

    def due(self, allocation: Allocation, pod: JsonMapping) -> bool:
        """Return whether the row must be read completely for `check`."""
        if allocation.state not in _ON_NODE or GRANT not in annotations_of(pod):
            return False
        if facts_of(pod).node not in (None, allocation.node):
            return True
        if self._looks >= MAX_LOOKS or allocation.pod_uid in self._looked:
            return False
        self._looks += 1
        self._looked.add(allocation.pod_uid)
        return True

    def next_round(self, held: set[PodUid]) -> None:
        """Begin the next pass when each row was checked."""
        if self._looks < MAX_LOOKS:
            self._looked.clear()
        self._looked &= held
        self._looks = 0
        self._empty &= held
        self.drift.show_standing(EMPTY_CLASS, len(self._empty))

    async def check(self, row: Allocation, pod: JsonMapping) -> bool:
        """Return whether the row differed from its pod's grant. Raises: Conflict, Unavailable."""
        if row.state not in _ON_NODE or row.origin is Origin.CLAIM:
            return False
        grant = self._grant_of(row, pod)
        if grant is None:
            await self._note_empty(row)
            return False
        signed = grant.domain_containers()
        if _is_as_signed(row, grant) and _cards(row.containers) == _cards(signed):
            return await self._check_annotations(row, pod)
        moved = await self.store.last_move(row.id)
        wanted = tuple(signed if moved is None else _on_cards(signed, moved))
        if _is_as_signed(row, grant) and _cards(row.containers) == _cards(wanted):
            return await self._check_annotations(row, pod)
        if not await self.store.rewrite(
            row,
            node=NodeName(grant.node),
            namespace=grant.namespace,
            pod_name=grant.pod_name,
            containers=wanted,
            reason=REASON,
        ):
            return False
        was = f"{row.node}, {_describe(row.containers)}"
        detail = f"the row had {was}; it has {grant.node}, {_describe(wanted)} again"
        subject = f"{grant.namespace}/{grant.pod_name} ({row.pod_uid})"
        await self._note(GRANT_CLASS, [RepairedRow(subject=subject, detail=detail)])
        return True

    async def _check_annotations(self, row: Allocation, pod: JsonMapping) -> bool:
        """Return whether the row had annotations of other slices than it has."""
        wrong = self.misread(row, pod) if row.origin is Origin.SCHEDULED and row.token else {}
        if not wrong or not await self.annotate(row.id, row.token or 0, wrong):
            return False
        detail = "; ".join(
            f"{key} was kept as '{clip(row.annotations.get(key, 'missing'))}', its slices are"
            f" '{clip(value)}'"
            for key, value in wrong.items()
        )
        await self._note(GRANT_CLASS, [RepairedRow(subject=subject_of(row), detail=detail)])
        return True

    def _grant_of(self, row: Allocation, pod: JsonMapping) -> Grant | None:
        facts = facts_of(pod)
        try:
            grant = self.read_signed(annotations_of(pod).get(GRANT, ""))
        except InvalidRequest:
            return None
        known = (grant.allocation_id, grant.pod_uid, grant.node)
        return grant if known == (row.id, facts.uid, facts.node) else None

    async def _note_empty(self, row: Allocation) -> None:
        if any(each.shares for each in row.containers):
            self._empty.discard(row.pod_uid)
        elif row.pod_uid not in self._empty:
            self._empty.add(row.pod_uid)
            await self.drift.note(
                EMPTY_CLASS,
                subject_of(row),
                "its row has no slices and the pod has no valid signed grant: delete the pod",
                repaired=False,
            )

    async def _note(self, kind: str, rows: Sequence[RepairedRow]) -> None:
        for row in rows:
            await self.drift.note(kind, row.subject, row.detail, repaired=True)


_SHAPE = attrgetter("vendor", "memory_mib", "core_percent", "slots", "type")


def _is_as_signed(row: Allocation, grant: Grant) -> bool:
    """Return whether the row equals the signed grant, apart from the cards."""
    names = (row.node, row.namespace, row.pod_name)
    return names == (grant.node, grant.namespace, grant.pod_name) and _shapes(
        row.containers
    ) == _shapes(grant.domain_containers())


def _shapes(containers: Sequence[ContainerGrant]) -> list[tuple[object, ...]]:
    return [(each.index, each.name, each.role, [*map(_SHAPE, each.shares)]) for each in containers]


def _cards(containers: Sequence[ContainerGrant]) -> dict[str, list[str]]:
    return {each.name: [share.uuid for share in each.shares] for each in containers if each.shares}


def _on_cards(
    containers: Sequence[ContainerGrant], cards: Mapping[str, Sequence[str]]
) -> list[ContainerGrant]:
    """Return the containers with these cards; those with another number are unchanged."""
    return [
        replace(
            each,
            shares=tuple(
                replace(share, uuid=GpuUuid(uuid))
                for share, uuid in zip(each.shares, cards[each.name], strict=True)
            ),
        )
        if len(cards.get(each.name, ())) == len(each.shares)
        else each
        for each in containers
    ]


def _describe(containers: Sequence[ContainerGrant]) -> str:
    slices = [
        f"{each.name}: {share.memory_mib} MiB and {share.core_percent} cores of {share.uuid}"
        for each in containers
        for share in each.shares
    ]
    return "; ".join(slices) or "no slices"


CARD_CLASS = "card-counters"
SEQUENCE_CLASS = "number-sequence"


@dataclass(eq=False, kw_only=True)
class CounterRepairer:
    """Find and repair wrong counters."""

    store: PostgresCounters
    view: ClusterState
    drift: Drift

    async def once(self) -> int:
        """Compare once; return the number of repairs. Raises: Conflict, Unavailable."""
        sequences = await self.store.repair_sequences()
        for each in sequences:
            await self.drift.note(SEQUENCE_CLASS, each.subject, each.detail, repaired=True)
        cards = await self.store.repair_cards()
        if cards:
            # The view takes no version that is lower than the one it has.
            for node in {card.node for card in cards if card.is_older}:
                self.view.cluster.remove_node(node)
            await self.view.refresh_nodes(*{card.node for card in cards})
        for card in cards:
            subject = f"{card.node}/{card.uuid}"
            await self.drift.note(CARD_CLASS, subject, card.detail, repaired=True)
        return len(sequences) + len(cards)
