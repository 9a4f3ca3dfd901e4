"""Explain why no node fits: HAMi's reason per node, and typed data per card.

`engine.py` hands over one `Step` for every request at which nodes dropped out; `Refusal` is what
the scheduler answers, records (`decisions`) and explains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.placement.choice.chooser_answers import ChooserAnswers
from hamicommon.placement.cluster.cards import Cards, Codes, Int
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.predicates import Ask
from hamicommon.placement.rules import (
    NODE_INSUFFICIENT,
    NODE_UNREGISTERED,
    NUMA_NOT_FIT,
    PARTIAL,
    REASONS,
    RULES,
    Rule,
    text_of,
)
from hamicommon.placement.vendor_policy import NotChosen

_NAMES = (*dict.fromkeys(REASONS.values()), NUMA_NOT_FIT, PARTIAL)
_COLUMN = {name: column for column, name in enumerate(_NAMES, start=1)}
"""Column in which each reason is counted; column 0 counts the node's cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """First rule that one card fails for a slice."""

    uuid: GpuUuid
    rule: Rule
    requested: int
    """Requested amount in the rule's unit: MiB, percent or slots; 0 if it compares none."""
    available: int
    """Free amount in the same unit; may be negative on a card that shrank."""

    @property
    def reason(self) -> str:
        """HAMi's name of the rule."""
        return self.rule.reason


class GroupLimit(NamedTuple):
    """Limit that a node's cards must meet together, and how many fit within it."""

    text: str
    """Text that follows `fit`, as in `NotChosen.limit`."""
    fitting: int
    reuses_card: bool = False
    """Whether one card may count several times, so that more may be requested than exist."""


ON_ONE_NUMA_NODE = "on one NUMA node"


@dataclass(slots=True, kw_only=True)
class Step:
    """Nodes that were refused at one request of one container.

    The reasons are computed on request (`detail`): usually some node fits, and they are not needed.
    """

    container: str
    ask: Ask
    rows: Int
    """Rows that were checked; the following arrays have an entry for each."""
    cards: Cards
    """Cards as they were at this step."""
    refused: Int
    """Positions in `rows` of the refused ones."""
    partial: Int
    """Number of cards that fitted, within the last NUMA group if grouped."""
    dropped: Int | None
    """Picks dropped by NUMA grouping; None: not grouped."""
    largest_group: Int | None
    """Number of cards that fitted in the largest NUMA group; None: not grouped."""
    asked: ChooserAnswers
    """Answers of the vendor's chooser, if it decided."""

    def detail(self) -> RefusedNodes:
        """Return only the refused nodes, with the reason of each card."""
        refused = self.refused
        ask, cards = self.ask, self.cards
        if len(refused) < len(self.rows):
            ask, cards = ask.take(refused), cards.take(refused)
        return RefusedNodes(
            container=self.container,
            ask=ask,
            rows=self.rows[refused],
            cards=cards,
            codes=ask.judge(cards),
            partial=self.partial[refused],
            dropped=None if self.dropped is None else self.dropped[refused],
            largest_group=None if self.largest_group is None else self.largest_group[refused],
            asked=self.asked,
            positions=refused,
        )


@dataclass(slots=True, kw_only=True)
class RefusedNodes:
    """Nodes that were refused at one request; arrays have one row per node."""

    container: str
    ask: Ask
    rows: Int
    """Rows of the view."""
    cards: Cards
    codes: Codes
    partial: Int
    dropped: Int | None
    largest_group: Int | None
    asked: ChooserAnswers
    positions: Int
    """Positions by which `asked` identifies the nodes."""

    def reasons(self) -> list[str]:
        """Return HAMi's reason per row, sorted: `1/4 CardNotHealth, 2/4 CardInsufficientMemory`."""
        counts = np.zeros((len(self.rows), 1 + len(_NAMES)), np.uint16)
        counts[:, 0] = (self.codes != Rule.NO_CARD).sum(axis=1)
        for rule in np.flatnonzero(np.bincount(self.codes.ravel(), minlength=256)).tolist():
            if rule in REASONS:
                counts[:, _COLUMN[REASONS[RULES[rule]]]] += (self.codes == rule).sum(
                    axis=1, dtype=np.uint16
                )
        if self.dropped is not None:
            counts[:, _COLUMN[NUMA_NOT_FIT]] = self.dropped
        counts[:, _COLUMN[PARTIAL]] = self.partial
        # Few distinct rows exist in a cluster, so each text is made once, found by the row's bytes.
        texts: dict[bytes, str] = {}
        found, data, width = [], counts.tobytes(), counts.itemsize * counts.shape[1]
        for row, start in enumerate(range(0, len(data), width)):
            key = data[start : start + width]
            text = texts.get(key)
            if text is None:
                text = texts[key] = _text(counts[row].tolist(), self.ask.request.count)
            found.append(text)
        if self.asked.refusals:
            self._overrule(found, counts[:, 0])
        return found

    def _overrule(self, texts: list[str], totals: npt.NDArray[np.uint16]) -> None:
        """Replace texts by the answers of the vendor's chooser."""
        count, reuses = self.ask.request.count, self.ask.rules.reuses_card
        for number, position in enumerate(self.positions.tolist()):
            answer = self.asked.refusals.get(position)
            total = int(totals[number])
            if answer is not None and (reuses or count <= total):
                counted = total if answer.total is None else answer.total
                texts[number] = answer.uncounted or text_of(answer.reasons, counted)

    def group_limits(self) -> dict[int, GroupLimit]:
        """Return by node number the limits that fitting cards must meet together."""
        limits, rules = {}, self.ask.rules
        if self.largest_group is not None:
            limits = {
                number: GroupLimit(ON_ONE_NUMA_NODE, fitting)
                for number, fitting in enumerate(self.largest_group.tolist())
            }
        for number, answer in self._chooser_refusals():
            limits.pop(number, None)
            if answer.limit:
                limits[number] = GroupLimit(answer.limit, answer.fitting, rules.reuses_card)
        return limits

    def judge(self, view: ClusterView) -> Codes:
        """Return (nodes, places): rule that refused each card, also by the vendor's chooser."""
        codes = self.codes.copy()
        for number, answer in self._chooser_refusals():
            if answer.refused:
                uuids = view.uuids(int(self.rows[number]))
                for uuid, rule in answer.refused.items():
                    codes[number, uuids.index(uuid)] = rule
        return codes

    def _chooser_refusals(self) -> Iterator[tuple[int, NotChosen]]:
        """Return the chooser's refusals by node number."""
        if not self.asked.refusals:
            return
        for number, position in enumerate(self.positions.tolist()):
            answer = self.asked.refusals.get(position)
            if answer is not None:
                yield number, answer

    def amounts(self, codes: Codes) -> tuple[Int, Int]:
        """Return (nodes, places) each: requested and free amount of the refused cards."""
        cards, need = self.cards, self.ask.need
        requested, available = np.zeros(codes.shape, np.int64), np.zeros(codes.shape, np.int64)
        wanted: tuple[tuple[str, Int | int, Int], ...] = (
            ("MiB", need.memory_on(cards), cards.free_memory),
            ("percent", need.core_on(cards), need.free_core_of(cards)),
            ("slots", need.slots_on(cards), cards.free_slots),
        )
        for unit, asked, free in wanted:
            here = np.isin(codes, [rule for rule in REASONS if rule.row.unit == unit])
            np.copyto(requested, asked, where=here)
            np.copyto(available, free, where=here)
        return requested, available


def _text(counts: Sequence[int], wanted: int) -> str:
    """Return the text for `counts`: number of cards, then number per reason."""
    total, *per_reason = counts
    if total < wanted:
        return NODE_INSUFFICIENT
    return text_of(dict(zip(_NAMES, per_reason, strict=True)), total)


class Shortfalls(Mapping[NodeName, tuple[Shortfall, ...]]):
    """Refused cards per node, created on demand from arrays.

    A node that is unregistered has no entry.
    """

    def __init__(
        self, places: Mapping[NodeName, tuple[int, int]], tables: Sequence[ShortfallTable]
    ) -> None:
        self._places = places
        self.tables = tables
        """The same as arrays, for the decision record."""

    def __getitem__(self, node: NodeName) -> tuple[Shortfall, ...]:
        table, row = self._places[node]
        return self.tables[table].row(row)

    def limit_of(self, node: NodeName) -> GroupLimit | None:
        """Return the limit that the node's cards must meet together; None: none."""
        if node not in self._places:
            return None
        table, row = self._places[node]
        return self.tables[table].limits.get(row)

    def __iter__(self) -> Iterator[NodeName]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortfallTable:
    """Nodes refused at one request; arrays are (nodes, places)."""

    container: str
    vendor: str
    nodes: tuple[NodeName, ...]
    uuids: tuple[tuple[GpuUuid, ...], ...]
    codes: Codes
    """Rule per card; FITS if the card fits but the node has too few."""
    requested: Int
    available: Int
    limits: Mapping[int, GroupLimit]
    """Limits that a node's cards must meet together, by node number."""

    @property
    def fitting(self) -> Int:
        """Return (nodes,): number of cards that would fit together."""
        fitting: Int = (self.codes == Rule.FITS).sum(axis=1)
        for row, limit in self.limits.items():
            fitting[row] = limit.fitting
        return fitting

    def row(self, row: int) -> tuple[Shortfall, ...]:
        """Return the refused cards of one node."""
        return tuple(
            Shortfall(
                uuid=uuid,
                rule=Rule(self.codes[row, place]),
                requested=int(self.requested[row, place]),
                available=int(self.available[row, place]),
            )
            for place, uuid in enumerate(self.uuids[row])
            if self.codes[row, place] not in (Rule.FITS, Rule.NO_CARD)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Answer that no candidate fits."""

    reasons: Mapping[NodeName, str]
    """HAMi's reason for each candidate."""
    shortfalls: Shortfalls


def refusal_of(view: ClusterView, steps: Sequence[Step], unknown: Sequence[NodeName]) -> Refusal:
    """Combine the reasons of the steps and of unknown candidates.

    Must be called before the view changes; the result holds no reference to it.
    """
    reasons: dict[NodeName, str] = dict.fromkeys(unknown, NODE_UNREGISTERED)
    places: dict[NodeName, tuple[int, int]] = {}
    tables = []
    for number, step in enumerate(steps):
        refused = step.detail()
        nodes = view.names(refused.rows)
        reasons.update(zip(nodes, refused.reasons(), strict=True))
        places.update(zip(nodes, zip(repeat(number), range(len(nodes))), strict=True))
        codes = refused.judge(view)
        requested, available = refused.amounts(codes)
        tables.append(
            ShortfallTable(
                container=step.container,
                vendor=step.ask.request.vendor,
                nodes=nodes,
                uuids=tuple(map(view.uuids, refused.rows.tolist())),
                codes=codes,
                requested=requested,
                available=available,
                limits=refused.group_limits(),
            )
        )
    return Refusal(
        reasons=reasons,
        shortfalls=Shortfalls(places, tables),
    )
