"""`hamictl showback`: whose the cards' time was, what became of the rest, and what it cost."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import orjson
import typer
from hamicommon.ledger.showback import NamespaceUse, as_focus, as_json, use_by_namespace

from hamictl.commands.options import Answered as Form
from hamictl.commands.options import At, Since, Until, moment_of, since_of
from hamictl.commands.past import bill_rows
from hamictl.commands.past.named import ask
from hamictl.commands.past.prices import FORM, bill_by, given_prices
from hamictl.commands.runner import run
from hamictl.output import render
from hamictl.output.formats import TABLE
from hamictl.output.formats import Form as OutputForm
from hamictl.output.terminal import note
from hamictl.scheduler_client import SchedulerClient
from hamictl.settings import Settings
from hamictl.target import find_target

PATH = "/api/v1/showback"


class Basis(StrEnum):
    """By what a share of a card is counted."""

    MEMORY = "memory"
    CORES = "cores"
    SLOTS = "slots"
    MIXED = "mixed"


def showback(
    month: Annotated[
        str, typer.Option(metavar="YYYY-MM", help="of this month (UTC); without it this one")
    ] = "",
    basis: Annotated[
        Basis, typer.Option(help="what a share of a card is counted by")
    ] = Basis.MEMORY,
    weight: Annotated[
        float, typer.Option(min=0, max=1, help="of memory, with --basis mixed; cores have the rest")
    ] = 0.5,
    by_type: Annotated[
        bool, typer.Option("--by-type", help="a line for each type of card")
    ] = False,
    focus: Annotated[
        bool, typer.Option("--focus", help="as a FOCUS 1.0 file, for cost tools")
    ] = False,
    price: Annotated[
        str, typer.Option(metavar="AMOUNT", help="of a card-hour, one for all types, as in 2.50")
    ] = "",
    price_list: Annotated[
        str, typer.Option("--price-list", metavar="FILE", help=f"in JSON, as in {FORM}")
    ] = "",
    at: At = "",
    since: Since = "",
    until: Until = "",
    output: Form = TABLE,
) -> None:
    """Show what each namespace held of the cards' time, what became of the rest, and the cost."""
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
    records = bill_rows.bill_records(bill, by_type=by_type, as_of=str(bill["until"]), use=use)
    render.write(records, output)
    if output.for_people and records.rows:
        sums = ask("showback-sum", asked).rows
        whole = next((row for row in sums if row["type"] == ""), None)
        note(bill_rows.sum_sentence(bill, whole))


def _use(asked: Mapping[str, object], basis: Basis) -> dict[str, NamespaceUse]:
    span = {"since": asked["since"], "until": asked["until"]}
    return use_by_namespace(ask("namespace-use", span).rows, basis=basis.value)


def _span(month: str, at: str, since: str, until: str) -> tuple[datetime, datetime]:
    """From when to when. Raises: typer.BadParameter."""
    if sum(map(bool, (month, at, since or until))) > 1:
        raise typer.BadParameter(
            "one of --month, --at (the month up to then), and --since with --until",
            param_hint="--month",
        )
    now = moment_of(at, "--at") or datetime.now(UTC)
    found = bill_rows.month_of(month, now)
    if found is None:
        raise typer.BadParameter(
            f"{month!r} is no month that has begun: 2026-11 is wanted", param_hint="--month"
        )
    end = moment_of(until, "--until") or found[1]
    # What ends in a month that is over begins with that month.
    months_beginning = end.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    begin = since_of(since) or min(found[0], months_beginning)
    if begin >= end:
        raise typer.BadParameter("it is not before --until", param_hint="--since")
    return begin, end


def _query(asked: Mapping[str, object]) -> dict[str, str]:
    return {
        key: value.isoformat() if isinstance(value, datetime) else str(value)
        for key, value in asked.items()
    }


async def _bill(asked: Mapping[str, object]) -> Any:
    client = SchedulerClient(find_target(Settings()).need_metrics())
    return await client.get(PATH, **_query(asked))


async def _text(asked: Mapping[str, object]) -> str:
    client = SchedulerClient(find_target(Settings()).need_metrics())
    return await client.text(PATH, format="focus", **_query(asked))
