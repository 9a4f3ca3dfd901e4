"""Rows of `hamictl top`: granted and used amounts of each card, and its pods. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hamictl.output.records import Records, Row, TableColumn, plain_column
from hamictl.view.named import GIB, amount

BAR = 14
HOLDERS_NAMED = 3
NARROW = 100
"""Width in columns below which bars are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopCard:
    """State of one card; None is unknown."""

    node: str
    index: int
    uuid: str
    model: str
    memory_bytes: int
    held_memory_bytes: int
    used_memory_bytes: int | None
    held_core_ratio: float
    used_core_ratio: float | None
    trouble: str
    """Problem of the card; empty if it is healthy and not cordoned."""
    holders: tuple[tuple[str, int], ...]
    """Pods as (namespace/pod, bytes), the largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLook:
    """State of the cluster at one moment."""

    cards: Sequence[TopCard]
    waiting: int
    as_of: str


def top_look(
    cards: Iterable[Row], slices: Iterable[Row], reasons: Iterable[Row], *, as_of: str
) -> TopLook:
    """Combine the answers to `cards`, `what-runs-where` and `pending-reasons`."""
    held: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in slices:
        pod = f"{row['namespace'] or '?'}/{row['pod_name'] or 'other'}"
        held[str(row["device_uuid"])][pod] += row["memory_bytes"] or 0
    return TopLook(
        cards=[_card(row, held.get(str(row["device_uuid"]), {})) for row in cards],
        waiting=sum(row["pod_count"] for row in reasons),
        as_of=as_of,
    )


def _card(row: Row, holders: Mapping[str, int]) -> TopCard:
    return TopCard(
        node=str(row["node"]),
        index=row["card_index"],
        uuid=str(row["device_uuid"]),
        model=str(row["type"]).removeprefix("NVIDIA "),
        memory_bytes=row["memory_bytes"],
        held_memory_bytes=row["held_memory_bytes"],
        used_memory_bytes=row["used_memory_bytes"],
        held_core_ratio=row["held_core_ratio"],
        used_core_ratio=row["used_core_ratio"],
        trouble=_trouble(row),
        holders=tuple(sorted(holders.items(), key=lambda item: (-item[1], item[0]))),
    )


def _trouble(row: Row) -> str:
    if not row["healthy"]:
        return f"✖ {row['health_reason'] or 'unhealthy'}"
    return "cordoned" if row["cordoned"] else ""


def heading(look: TopLook) -> str:
    """Return the summary line `hami · 3 nodes · 12 cards · 9 held · 1 waiting`."""
    nodes = len({card.node for card in look.cards})
    held = sum(bool(card.holders) for card in look.cards)
    return f"hami · {nodes} nodes · {len(look.cards)} cards · {held} held · {look.waiting} waiting"


def bar(card: TopCard, width: int = BAR) -> str:
    """Draw a bar: `▓` used, `░` granted but unused, `·` free; unknown use counts as granted."""
    if card.memory_bytes <= 0:
        return "[" + "?" * width + "]"
    held = min(width, round(card.held_memory_bytes * width / card.memory_bytes))
    used = min(held, round((card.used_memory_bytes or 0) * width / card.memory_bytes))
    return "[" + "▓" * used + "░" * (held - used) + "·" * (width - held) + "]"


def memory(card: TopCard) -> str:
    """Format memory as `52|31/80 GiB`: granted, used, total."""
    used = "?" if card.used_memory_bytes is None else f"{card.used_memory_bytes / GIB:.3g}"
    return f"{card.held_memory_bytes / GIB:.3g}|{used}/{amount(card.memory_bytes)}"


def cores(card: TopCard) -> str:
    """Format cores as `60|48 %`: granted, used."""
    used = "?" if card.used_core_ratio is None else f"{card.used_core_ratio * 100:.0f}"
    if not card.held_core_ratio and card.holders:
        return f"any|{used} %"
    return f"{card.held_core_ratio * 100:.0f}|{used} %"


def holders(card: TopCard, most: int = HOLDERS_NAMED) -> str:
    """Return the problem of the card, then its largest holders, `most` of them by name."""
    named = [f"{pod} {amount(size)}" for pod, size in card.holders[:most]]
    if len(card.holders) > most:
        named.append(f"+{len(card.holders) - most}")
    return "  ".join(part for part in (card.trouble, ", ".join(named)) if part)


SORTS: Mapping[str, str] = {"n": "node", "m": "memory", "u": "used", "c": "cores", "h": "holders"}
"""Letters after the key `o` -> the order of rows."""


def chosen(
    look: TopLook, *, filter_text: str = "", problems: bool = False, sort: str = "node"
) -> list[TopCard]:
    """Return the cards to show, sorted; `!text` excludes cards with the text."""
    found = [
        card
        for card in look.cards
        if (not problems or card.trouble) and passes(filter_text, _text(card))
    ]
    return sorted(found, key=lambda card: _rank(card, sort))


def passes(filter_text: str, text: str) -> bool:
    """Return whether a row with this lower-case text is shown; `!text` excludes it."""
    wanted = filter_text.lower().removeprefix("!")
    return not wanted or (wanted in text) is not filter_text.startswith("!")


def _text(card: TopCard) -> str:
    pods = " ".join(pod for pod, _ in card.holders)
    return f"{card.node} {card.model} {card.uuid} {card.trouble} {pods}".lower()


def _rank(card: TopCard, sort: str) -> tuple[float, str, int]:
    """Return the sort key: the largest first, except for nodes; unknown is last."""
    first = {
        "memory": -card.held_memory_bytes,
        "used": 1.0 if card.used_memory_bytes is None else -card.used_memory_bytes,
        "cores": -card.held_core_ratio,
        "holders": -len(card.holders),
    }.get(sort, 0.0)
    return first, card.node, card.index


def top_records(look: TopLook, cards: Sequence[TopCard]) -> Records:
    """Return the same rows for pipes and programs."""
    by_uuid = {card.uuid: card for card in cards}

    def of_card(row: Row) -> TopCard:
        return by_uuid[row["device_uuid"]]

    return Records(
        kind="TopCard",
        plural="cards",
        columns=(
            plain_column("NODE", "node"),
            plain_column("CARD", "card_index"),
            plain_column("MODEL", "type"),
            TableColumn("MEM GRANTED|USED", lambda row: bar(of_card(row)), "held_memory_bytes"),
            TableColumn("", lambda row: memory(of_card(row)), "used_memory_bytes"),
            TableColumn("SM GRANTED|USED", lambda row: cores(of_card(row)), "held_core_ratio"),
            TableColumn("HOLDERS", lambda row: holders(of_card(row)), "holders"),
        ),
        rows=[_row(card) for card in cards],
        name=lambda row: f"device/{row['device_uuid']}",
        as_of=look.as_of,
    )


def _row(card: TopCard) -> dict[str, object]:
    return {
        "node": card.node,
        "card_index": card.index,
        "device_uuid": card.uuid,
        "type": card.model,
        "memory_bytes": card.memory_bytes,
        "held_memory_bytes": card.held_memory_bytes,
        "used_memory_bytes": card.used_memory_bytes,
        "held_core_ratio": card.held_core_ratio,
        "used_core_ratio": card.used_core_ratio,
        "trouble": card.trouble or None,
        "holders": [{"pod": pod, "memory_bytes": size} for pod, size in card.holders],
    }
