"""A bill's lines as rows, and the sentence that has their sum. Pure.

Card time is in whole seconds and money in exact texts, so that rows add up to the sum.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hamicommon.ledger.showback import UNKNOWN_USE, NamespaceUse

from hamictl.output.records import Records, Row, TableColumn

KINDS = ("held", "idle", "stranded", "cordoned", "unhealthy", "unknown")
"""In the order in which they are shown."""
HOUR_S = 3600
_MONTH = re.compile(r"(20\d\d)-(0[1-9]|1[0-2])")


def month_of(text: str, now: datetime) -> tuple[datetime, datetime] | None:
    """The month's beginning, and its end or now; None for what is no month, or has not begun."""
    found = _MONTH.fullmatch(text or f"{now.astimezone(UTC):%Y-%m}")
    if found is None:
        return None
    since = datetime(int(found[1]), int(found[2]), 1, tzinfo=UTC)
    place = since.year * 12 + since.month
    until = since.replace(year=place // 12, month=place % 12 + 1)
    return None if since > now else (since, min(until, now))


def bill_rows(lines: Sequence[Mapping[str, Any]], *, by_type: bool) -> list[dict[str, Any]]:
    """Namespaces by what they held, the largest first, then what became of the other time."""
    whole = sum(int(line["card_s"]) for line in lines)
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for line in lines:
        card_type = str(line["type"]) if by_type else ""
        key = (str(line["kind"]), str(line["namespace"] or ""), card_type)
        row = rows.setdefault(
            key,
            {
                "namespace": line["namespace"],
                "kind": key[0],
                **({"type": card_type} if by_type else {}),
                "card_s": 0,
                "cost": "0",
            },
        )
        row["card_s"] += int(line["card_s"])
        row["cost"] = _sum(row["cost"], line["cost"])
    for row in rows.values():
        row["share_ratio"] = row["card_s"] / whole if whole else None
    return sorted(rows.values(), key=_order)


def _sum(one: str | None, other: str | None) -> str | None:
    """Unknown where a part of it is."""
    return None if one is None or other is None else str(Decimal(one) + Decimal(other))


def _order(row: Row) -> tuple[int, int, str, str]:
    kind = KINDS.index(row["kind"]) if row["kind"] in KINDS else len(KINDS)
    held_most = -int(row["card_s"]) if row["kind"] == "held" else 0
    return kind, held_most, str(row["namespace"] or ""), str(row.get("type", ""))


def bill_records(
    bill: Mapping[str, Any],
    *,
    by_type: bool,
    as_of: str,
    use: Mapping[str, NamespaceUse] | None = None,
) -> Records:
    """The lines of the service's bill, summed up over types unless `by_type`.

    `use`: what was used of the held time, by namespace, for two more columns; None: not asked.
    """
    currency = str(bill.get("currency") or "")
    columns: list[tuple[str, Callable[[Row], str], str]] = [
        ("NAMESPACE", lambda row: str(row["namespace"] or "-"), "namespace"),
        ("KIND", lambda row: str(row["kind"]), "kind"),
        ("TYPE", lambda row: str(row.get("type") or "-"), "type"),
        ("CARD-HOURS", lambda row: hours(row["card_s"]), "card_s"),
        ("SHARE", _share, "share_ratio"),
        (f"COST {currency}".strip(), lambda row: row["cost"] or "?", "cost"),
    ]
    return Records(
        kind="ShowbackLine",
        plural="lines",
        columns=[
            *(
                TableColumn(header, shown, key)
                for header, shown, key in columns
                if by_type or key != "type"
            ),
            *([] if use is None else _of_use(use)),
        ],
        rows=bill_rows(bill["lines"], by_type=by_type),
        name=lambda row: f"showback/{row['namespace'] or row['kind']}",
        as_of=as_of,
    )


def _of_use(use: Mapping[str, NamespaceUse]) -> list[TableColumn]:
    def of_row(row: Row) -> NamespaceUse:
        held = row["kind"] == "held"
        return use.get(str(row["namespace"]), UNKNOWN_USE) if held else UNKNOWN_USE

    def used(row: Row) -> str:
        ratio = of_row(row).used_ratio
        return _unknown(row) if ratio is None else hours(row["card_s"] * ratio)

    def idle(row: Row) -> str:
        ratio = of_row(row).idle_ratio
        return _unknown(row) if ratio is None else f"{100 * ratio:.0f} %"

    return [TableColumn("USED", used), TableColumn("IDLE-HELD", idle)]


def _unknown(row: Row) -> str:
    """What nobody held has no use."""
    return "?" if row["kind"] == "held" else "-"


def _share(row: Row) -> str:
    return "?" if row["share_ratio"] is None else f"{100 * row['share_ratio']:.1f} %"


def hours(card_s: float) -> str:
    """Card-hours to a hundredth, with a space between thousands."""
    return f"{card_s / HOUR_S:,.2f}".replace(",", " ")


def _without(bill: Mapping[str, Any]) -> str:
    """What is missing, with the setting's name."""
    setting = "HAMI_METRICS_PRICE_LIST of hami-metrics"
    return f"no price ({setting})" if bill.get("prices") else f"no price list ({setting})"


def sum_sentence(bill: Mapping[str, Any], whole: Row | None) -> str:
    """Whether the lines are the cards' own time, to the second; `whole`: of `showback-sum`."""
    text = f"sum {hours(bill['card_s'])} card-hours by {bill['basis']}"
    if unpriced := ", ".join(sorted({str(x["type"]) for x in bill["lines"] if x["cost"] is None})):
        text = f"{_without(bill)} for {unpriced}: or take --price or --price-list; {text}"
    if whole is None:
        return f"{text}; the cards' own time is unknown"
    if whole["agrees"] and whole["card_s"] == bill["card_s"]:
        return f"{text}: the cards' own time, to the second"
    return f"{text}, but the cards' own time is {hours(whole['card_s'])}"
