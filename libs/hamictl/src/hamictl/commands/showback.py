"""`hamictl showback`: card time per namespace, time that no pod held, and its cost.

Card time is in whole seconds and money in exact decimal texts, so that rows add up to the sum. The
user may supply prices: one for all types, or a price list's file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from hamicommon.errors import InvalidRequest
from hamicommon.ledger.showback import (
    UNKNOWN_USE,
    Bill,
    NamespaceUse,
    PriceList,
    as_focus,
    as_json,
    make_bill,
    read_prices,
    use_by_namespace,
)

from hamictl.commands.named import ask
from hamictl.commands.options import Answered as Form
from hamictl.commands.options import At, Since, Until, moment_of, since_of
from hamictl.commands.runner import run
from hamictl.output import render
from hamictl.output.records import TABLE, Records, Row, TableColumn
from hamictl.output.records import Form as OutputForm
from hamictl.output.terminal import note
from hamictl.target import find_target

KINDS = ("held", "idle", "stranded", "cordoned", "unhealthy", "unknown")
"""States of card time, in the order shown."""
HOUR_S = 3600
_MONTH = re.compile(r"(20\d\d)-(0[1-9]|1[0-2])")


def month_of(text: str, now: datetime) -> tuple[datetime, datetime] | None:
    """Return start and end of a month (now, if it lasts); None if invalid or in the future."""
    found = _MONTH.fullmatch(text or f"{now.astimezone(UTC):%Y-%m}")
    if found is None:
        return None
    since = datetime(int(found[1]), int(found[2]), 1, tzinfo=UTC)
    place = since.year * 12 + since.month
    until = since.replace(year=place // 12, month=place % 12 + 1)
    return None if since > now else (since, min(until, now))


def bill_rows(lines: Sequence[Mapping[str, Any]], *, by_type: bool) -> list[dict[str, Any]]:
    """Return rows for namespaces, the largest first, then for time that no pod held."""
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
                "share_ratio": None,
                "cost": "0",
            },
        )
        row["card_s"] += int(line["card_s"])
        row["cost"] = _sum(row["cost"], line["cost"])
    for row in rows.values():
        row["share_ratio"] = row["card_s"] / whole if whole else None
    return sorted(rows.values(), key=_order)


def _sum(one: str | None, other: str | None) -> str | None:
    """Return the sum; None if a part is unknown."""
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
    """Return the lines of the bill, summed up over types unless `by_type`.

    `use`: used part of the held time, by namespace, for two more columns; None: not requested.
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

    def used_hours(row: Row) -> str:
        ratio = of_row(row).used_ratio
        return _unknown(row) if ratio is None else hours(row["card_s"] * ratio)

    def idle(row: Row) -> str:
        ratio = of_row(row).idle_ratio
        return _unknown(row) if ratio is None else f"{100 * ratio:.0f} %"

    return [TableColumn("USED", used_hours), TableColumn("IDLE-HELD", idle)]


def _unknown(row: Row) -> str:
    """Return the sign for unknown use; time that no pod held has no use."""
    return "?" if row["kind"] == "held" else "-"


def _share(row: Row) -> str:
    return "?" if row["share_ratio"] is None else f"{100 * row['share_ratio']:.1f} %"


def hours(card_s: float) -> str:
    """Format card-hours to a hundredth, with a space between thousands."""
    return f"{card_s / HOUR_S:,.2f}".replace(",", " ")


def _without(bill: Mapping[str, Any]) -> str:
    """Return which price is missing, with the setting's name."""
    setting = "HAMI_METRICS_PRICE_LIST of hami-metrics"
    return f"no price ({setting})" if bill.get("prices") else f"no price list ({setting})"


def sum_sentence(bill: Mapping[str, Any], whole: Row | None) -> str:
    """Return the total as a sentence, compared with the time of the cards themselves."""
    text = f"sum {hours(bill['card_s'])} card-hours by {bill['basis']}"
    if unpriced := ", ".join(sorted({str(x["type"]) for x in bill["lines"] if x["cost"] is None})):
        text = f"{_without(bill)} for {unpriced}: or take --price or --price-list; {text}"
    if whole is None:
        return f"{text}; the cards' own time is unknown"
    if whole["agrees"] and whole["card_s"] == bill["card_s"]:
        return f"{text}: the cards' own time, to the second"
    return f"{text}, but the cards' own time is {hours(whole['card_s'])}"


DEFAULT_CURRENCY = "EUR"
FORM = '{"version": "v3", "currency": "EUR", "card_hour": {"NVIDIA A100-SXM4-80GB": "2.50"}}'
"""Example of a price list."""
_MAX_PRICE = Decimal(10**9)


def given_prices(price: str, price_list: str) -> PriceList | Decimal | None:
    """Return prices from the options; None if neither is given. Raises: typer.BadParameter."""
    if price and price_list:
        raise typer.BadParameter("one of --price and --price-list", param_hint="--price")
    if price_list:
        try:
            return read_prices(Path(price_list))
        except InvalidRequest as exc:
            raise typer.BadParameter(
                f"{exc}; its form: {FORM}", param_hint="--price-list"
            ) from None
    if not price:
        return None
    try:
        amount = Decimal(price)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or not 0 <= amount <= _MAX_PRICE:
        raise typer.BadParameter(
            f"{price!r} is not a price: use a number such as 2.50", param_hint="--price"
        )
    return amount


def bill_by(bill: Mapping[str, Any], prices: PriceList | Decimal) -> Bill:
    """Return the service's bill with costs by these prices.

    A single price is in the currency of the service's price list, or in EUR without a list.
    """
    rows = [{**line, "namespace": line["namespace"] or ""} for line in bill["lines"]]
    if isinstance(prices, Decimal):
        prices = PriceList(
            version="--price",
            currency=str(bill.get("currency") or DEFAULT_CURRENCY),
            card_hour={str(row["type"]): prices for row in rows},
        )
    return make_bill(
        rows,
        since=datetime.fromisoformat(str(bill["since"])),
        until=datetime.fromisoformat(str(bill["until"])),
        basis=str(bill["basis"]),
        prices=prices,
    )


PATH = "/api/v1/showback"


class Basis(StrEnum):
    """Basis by which part of a card is counted."""

    MEMORY = "memory"
    CORES = "cores"
    SLOTS = "slots"
    MIXED = "mixed"


def showback(
    month: Annotated[
        str, typer.Option(metavar="YYYY-MM", help="month, in UTC (default: this month up to now)")
    ] = "",
    basis: Annotated[
        Basis, typer.Option(help="what a share of a card is measured by")
    ] = Basis.MEMORY,
    weight: Annotated[
        float,
        typer.Option(min=0, max=1, help="weight of memory with --basis mixed; cores have the rest"),
    ] = 0.5,
    by_type: Annotated[
        bool, typer.Option("--by-type", help="show a line for each type of card")
    ] = False,
    focus: Annotated[
        bool, typer.Option("--focus", help="write a FOCUS 1.0 file, for cost tools")
    ] = False,
    price: Annotated[
        str, typer.Option(metavar="AMOUNT", help="price of a card-hour of every type, such as 2.50")
    ] = "",
    price_list: Annotated[
        str,
        typer.Option(
            "--price-list", metavar="FILE", help=f"price list in JSON; its form is in {FORM}"
        ),
    ] = "",
    at: At = "",
    since: Since = "",
    until: Until = "",
    output: Form = TABLE,
) -> None:
    """Show card-hours and their cost by namespace, and the time that no one held."""
    prices = given_prices(price, price_list)
    begin, end = _span(month, at, since, until)
    asked: dict[str, object] = {"since": begin, "until": end, "basis": basis.value}
    if basis is Basis.MIXED:
        asked["weight"] = weight
    if focus and prices is None:
        sys.stdout.write(run(_text(asked)))
        return
    bill = run(_bill(asked))
    if prices is not None:
        priced = bill_by(bill, prices)
        if focus:
            sys.stdout.write(as_focus(priced))
            return
        bill = orjson.loads(as_json(priced))
    use = _use(asked, basis) if output.form is OutputForm.WIDE and not by_type else None
    records = bill_records(bill, by_type=by_type, as_of=str(bill["until"]), use=use)
    render.write(records, output)
    if output.for_people and records.rows:
        sums = ask("showback-sum", asked).rows
        whole = next((row for row in sums if row["type"] == ""), None)
        note(sum_sentence(bill, whole))


def _use(asked: Mapping[str, object], basis: Basis) -> dict[str, NamespaceUse]:
    span = {"since": asked["since"], "until": asked["until"]}
    return use_by_namespace(ask("namespace-use", span).rows, basis=basis.value)


def _span(month: str, at: str, since: str, until: str) -> tuple[datetime, datetime]:
    """Return start and end of the period. Raises: typer.BadParameter."""
    if sum(map(bool, (month, at, since or until))) > 1:
        raise typer.BadParameter(
            "use one of --month, --at (the month up to then), and --since with --until",
            param_hint="--month",
        )
    now = moment_of(at, "--at") or datetime.now(UTC)
    found = month_of(month, now)
    if found is None:
        raise typer.BadParameter(
            f"{month!r} is not a month that has begun: use YYYY-MM, such as 2026-11",
            param_hint="--month",
        )
    end = moment_of(until, "--until") or found[1]
    # A period that ends in a past month begins with that month.
    months_beginning = end.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    begin = since_of(since) or min(found[0], months_beginning)
    if begin >= end:
        raise typer.BadParameter("is not before --until", param_hint="--since")
    return begin, end


def _query(asked: Mapping[str, object]) -> dict[str, str]:
    return {
        key: value.isoformat() if isinstance(value, datetime) else str(value)
        for key, value in asked.items()
    }


async def _bill(asked: Mapping[str, object]) -> Any:
    client = find_target().metrics_client()
    return await client.get(PATH, **_query(asked))


async def _text(asked: Mapping[str, object]) -> str:
    client = find_target().metrics_client()
    return await client.text(PATH, format="focus", **_query(asked))
