"""Why nothing fits: HAMi's reason per node, and typed data per card.

`place.py` hands over one `Step` for every request at which nodes dropped out; `Refusal` is what the
scheduler answers, records (`decisions`) and explains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.placement.cards import Cards, Codes, Int
from hamicommon.placement.rules import (
    NODE_INSUFFICIENT,
    NODE_UNREGISTERED,
    NUMA_NOT_FIT,
    PARTIAL,
    REASONS,
    Ask,
    Rule,
)
from hamicommon.placement.view import ClusterView


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """Why one card can't take a slice: the first rule that it fails."""

    uuid: GpuUuid
    rule: Rule
    requested: int
    """In the rule's unit: MiB, percent or slots; 0 where the rule compares no amounts."""
    available: int
    """What is free in the same unit; may be negative on a card that shrank."""

    @property
    def reason(self) -> str:
        """HAMi's word for the rule."""
        return REASONS[self.rule]


@dataclass(slots=True, kw_only=True)
class Step:
    """The nodes that dropped out at one request of one container."""

    container: str
    ask: Ask
    rows: Int
    """Rows of the view."""
    cards: Cards
    """As they were at this step, one row per entry of `rows`."""
    codes: Codes
    partial: Int
    """(nodes,): cards that fitted, in the last NUMA group when grouped."""
    dropped: Int
    """(nodes,): picks dropped by NUMA grouping."""

    def narrowed(self, kept: Int) -> Step:
        """The same for some of the nodes only."""
        return Step(
            container=self.container,
            ask=self.ask.take(kept),
            rows=self.rows[kept],
            cards=self.cards.take(kept),
            codes=self.codes[kept],
            partial=self.partial[kept],
            dropped=self.dropped[kept],
        )

    def reasons(self) -> list[str]:
        """HAMi's reason for every row: `2/4 CardInsufficientMemory, 1/4 CardNotHealth` sorted."""
        totals = (self.codes != Rule.NO_CARD).sum(axis=1)
        words = [*dict.fromkeys(REASONS.values()), NUMA_NOT_FIT, PARTIAL]
        counts = np.zeros((len(self.rows), len(words)), np.int64)
        for rule in np.unique(self.codes).tolist():
            if rule in REASONS:
                counts[:, words.index(REASONS[Rule(rule)])] += (self.codes == rule).sum(axis=1)
        counts[:, words.index(NUMA_NOT_FIT)] = self.dropped
        counts[:, words.index(PARTIAL)] = self.partial
        # Few distinct rows exist in a cluster, so each text is made once.
        texts: dict[tuple[int, ...], str] = {}
        result = []
        for total, row in zip(totals.tolist(), map(tuple, counts.tolist()), strict=True):
            if total < self.ask.request.count:
                result.append(NODE_INSUFFICIENT)
                continue
            key = (total, *row)
            if key not in texts:
                texts[key] = _text(total, dict(zip(words, row, strict=True)))
            result.append(texts[key])
        return result

    def unresolvable(self) -> list[bool]:
        """True for rows that would refuse even with nothing running on their cards."""
        possible = (~self.ask.hopeless(self.cards)).sum(axis=1)
        return [bool(x) for x in possible < self.ask.request.count]

    def amounts(self) -> tuple[Int, Int]:
        """(nodes, places) each: what was asked of the refused card, and what it had free."""
        cards, codes = self.cards, self.codes
        requested, available = np.zeros(codes.shape, np.int64), np.zeros(codes.shape, np.int64)
        wanted: tuple[tuple[tuple[Rule, ...], Int | int, Int], ...] = (
            ((Rule.MEMORY,), self.ask.memory_on(cards), cards.memory - cards.used_memory),
            ((Rule.CORES, Rule.EXCLUSIVE), self.ask.core, cards.core - cards.used_core),
            ((Rule.SLOTS, Rule.MUTEX), 1, cards.slots - cards.used_slots),
        )
        for rules, asked, free in wanted:
            here = np.isin(codes, rules)
            np.copyto(requested, asked, where=here)
            np.copyto(available, free, where=here)
        return requested, available


def _text(total: int, counts: Mapping[str, int]) -> str:
    return ", ".join(sorted(f"{n}/{total} {word}" for word, n in counts.items() if n))


class Shortfalls(Mapping[NodeName, tuple[Shortfall, ...]]):
    """Per node, the refused cards; made on demand from arrays that hold the whole refusal.

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

    def __iter__(self) -> Iterator[NodeName]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortfallTable:
    """The nodes refused at one request; arrays are (nodes, places)."""

    container: str
    vendor: str
    nodes: tuple[NodeName, ...]
    uuids: tuple[tuple[GpuUuid, ...], ...]
    codes: Codes
    """A Rule per card; FITS where the card fits but the node has too few."""
    requested: Int
    available: Int

    def row(self, row: int) -> tuple[Shortfall, ...]:
        """The refused cards of one node."""
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
    """No candidate fits."""

    reasons: Mapping[NodeName, str]
    """HAMi's reason for every candidate."""
    unresolvable: frozenset[NodeName]
    """Candidates that no eviction can help: they would refuse even when idle, or are unknown."""
    shortfalls: Shortfalls


def refusal_of(view: ClusterView, steps: Sequence[Step], unknown: Sequence[NodeName]) -> Refusal:
    """Puts together what the steps and the unknown candidates tell.

    Must be called before the view changes; the result holds no reference to it.
    """
    reasons: dict[NodeName, str] = dict.fromkeys(unknown, NODE_UNREGISTERED)
    unresolvable = set(unknown)
    places: dict[NodeName, tuple[int, int]] = {}
    tables = []
    for number, step in enumerate(steps):
        rows = step.rows.tolist()
        nodes = view.names(step.rows)
        reasons.update(zip(nodes, step.reasons(), strict=True))
        unresolvable.update(n for n, yes in zip(nodes, step.unresolvable(), strict=True) if yes)
        places.update((node, (number, row)) for row, node in enumerate(nodes))
        requested, available = step.amounts()
        tables.append(
            ShortfallTable(
                container=step.container,
                vendor=step.ask.request.vendor,
                nodes=nodes,
                uuids=tuple(view.uuids(row) for row in rows),
                codes=step.codes,
                requested=requested,
                available=available,
            )
        )
    return Refusal(
        reasons=reasons,
        unresolvable=frozenset(unresolvable),
        shortfalls=Shortfalls(places, tables),
    )
