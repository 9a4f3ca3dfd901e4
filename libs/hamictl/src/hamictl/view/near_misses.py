"""The cards that came nearest to a pod that waits, as the decision was stored. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from hamictl.view.tables import memory, of, table

MOST = 10
"""Cards that are shown; `explain -o json` has all that were stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMiss:
    """One card that was refused."""

    node: str
    card: str
    uuid: str
    short: str
    """How much it lacks; empty where an amount is not what it lacks."""
    share: float
    """Of what was asked; 1 where an amount is not what it lacks."""
    why: str
    reason: str


def near_misses(answer: Mapping[str, Any]) -> Sequence[NearMiss]:
    """Refused cards of an explanation, what lacks the least first."""
    found = [
        _near_miss(str(node["node"]), card)
        for node in answer.get("nodes") or ()
        for card in node.get("cards") or ()
        if not card["fits"]
    ]
    return sorted(found, key=lambda one: (one.share, one.node, one.card))


def _near_miss(node: str, card: Mapping[str, Any]) -> NearMiss:
    asked, unit = float(card.get("requested") or 0), str(card.get("unit") or "")
    lacks = asked - float(card.get("available") or 0) if asked else 0.0
    short = memory(round(lacks)) if unit == "MiB" else f"{lacks:g} {unit}"
    return NearMiss(
        node=node,
        card=of(card.get("index")),
        uuid=str(card["uuid"]),
        short=short if lacks > 0 else "",
        share=lacks / asked if lacks > 0 else 1.0,
        why=str(card["text"]),
        reason=str(card["reason"]),
    )


def near_misses_table(found: Sequence[NearMiss]) -> Table:
    """The nearest of them."""
    return table(
        f"Nearest cards, of {len(found)} refused",
        ("NODE", "CARD", "SHORT BY", "WHY", "HAMI'S REASON", "UUID"),
        (
            (one.node, one.card, one.short or "-", one.why, one.reason, one.uuid)
            for one in found[:MOST]
        ),
    )
