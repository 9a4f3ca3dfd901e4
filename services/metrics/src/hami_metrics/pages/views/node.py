"""One node: its cards with what is granted and used of each, and what happened there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from hami_metrics.pages.domain.cluster import (
    CardCondition,
    CardHolder,
    PageCard,
    PageNode,
    condition,
    silent,
)
from hami_metrics.pages.domain.details import DriftRow, HealthEvent, LatestUse, UsePoint
from hami_metrics.pages.views.elements.amounts import share
from hami_metrics.pages.views.elements.charts import UseChart, cores, memory_gib, use_chart
from hami_metrics.pages.views.elements.grid import GLYPHS

HOLDERS_SHOWN = 12
"""In a card's line; its page has all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLine:
    """One card of the table; None is unknown."""

    card: PageCard
    condition: CardCondition
    glyph: str
    used_mib: float | None
    core_used_percent: float | None
    granted: int | None
    """Percent of the memory, for the bar's outline."""
    used: int | None
    """Percent of the memory, for the bar's fill."""
    unhealthy_since: datetime | None
    """Of a card that is unhealthy: when that was recorded."""
    holders: Sequence[CardHolder]
    more_holders: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePage:
    """Everything that the template asks for."""

    node: PageNode
    unheard: bool
    lines: Sequence[CardLine]
    health: Sequence[HealthEvent]
    drift: Sequence[DriftRow]
    charts: Sequence[UseChart]
    indexes: dict[str, int]


def node_page(
    node: PageNode,
    *,
    latest: Sequence[LatestUse],
    series: Sequence[UsePoint],
    health: Sequence[HealthEvent],
    drift: Sequence[DriftRow],
    now: datetime,
    past: bool,
) -> NodePage:
    """`now`: the moment that is shown."""
    unheard = not past and silent(node, now)
    used = {one.device_uuid: one for one in latest if not one.pod_uid}
    last = {event.device_uuid: event for event in reversed(health)}
    sick_since = {uuid: event.at for uuid, event in last.items() if not event.healthy}
    names = {card.uuid: f"card {card.index}" for card in node.cards}
    return NodePage(
        node=node,
        unheard=unheard,
        lines=[
            _line(card, used.get(card.uuid), sick_since.get(card.uuid), unheard=unheard)
            for card in node.cards
        ],
        health=health[:20],
        drift=drift,
        charts=[
            use_chart("memory used", "GiB", series, names, memory_gib),
            use_chart("cores used", "%", series, names, cores),
        ],
        indexes={card.uuid: card.index for card in node.cards},
    )


def _line(
    card: PageCard, use: LatestUse | None, since: datetime | None, *, unheard: bool
) -> CardLine:
    now = condition(card, unheard=unheard)
    used_mib = None if use is None else use.memory_mib
    return CardLine(
        card=card,
        condition=now,
        glyph=GLYPHS[now],
        used_mib=used_mib,
        core_used_percent=None if use is None else use.core_percent,
        granted=share(card.used_memory_mib, card.memory_mib),
        used=share(used_mib, card.memory_mib),
        unhealthy_since=since if now is CardCondition.UNHEALTHY else None,
        holders=card.holders[:HOLDERS_SHOWN],
        more_holders=max(0, len(card.holders) - HOLDERS_SHOWN),
    )
