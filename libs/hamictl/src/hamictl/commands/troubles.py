"""`hamictl drift` and `dead-letters`: what was found different, and what could not be handled."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hamictl.commands.objects import Output
from hamictl.commands.runner import console, run
from hamictl.scheduler_client import Row, SchedulerClient
from hamictl.settings import Settings
from hamictl.target import find_target
from hamictl.view.tables import of, table

Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="the latest so many")]
Shown = Annotated[Output, typer.Option("--output", "-o")]


def drift(
    kind: Annotated[str, typer.Option("--class", help="of this class only")] = "",
    limit: Limit = 30,
    output: Shown = Output.TABLE,
) -> None:
    """Show where ledger, pods and nodes differed, and whether it was repaired."""
    query = {"limit": str(limit), **({"class": kind} if kind else {})}
    rows = run(_rows("/v1/drift", **query))
    _show("Drift", ("AT", "CLASS", "SUBJECT", "REPAIRED", "DETAIL"), rows, output)


def dead_letters(
    send_again: Annotated[
        int | None, typer.Option("--send-again", help="number of a letter whose cause is repaired")
    ] = None,
    limit: Limit = 30,
    output: Shown = Output.TABLE,
) -> None:
    """Show messages that no service could handle, with the reason; or send one again."""
    if send_again is not None:
        letter = run(_send_again(send_again))
        console.print(f"letter {send_again} sent again on {letter['subject']}", markup=False)
        return
    rows = run(_rows("/v1/dead-letters", limit=str(limit)))
    columns = ("SEQUENCE", "AT", "SUBJECT", "USER", "REASON")
    _show("Dead letters", columns, rows, output)


async def _rows(path: str, **query: str) -> list[Row]:
    return await _client().rows(path, **query)


async def _send_again(number: int) -> Any:
    return await _client().post(f"/v1/dead-letters/{number}/send")


def _client() -> SchedulerClient:
    """Raises InvalidRequest where no scheduler is known; `run` makes a sentence of it."""
    return SchedulerClient(find_target(Settings()).need_scheduler())


def _show(title: str, columns: tuple[str, ...], rows: list[Row], output: Output) -> None:
    if output is Output.JSON:
        console.print_json(data={"items": rows})
        return
    keys = [column.lower() for column in columns]
    cells = (tuple(_cell(key, row[key]) for key in keys) for row in rows)
    console.print(table(title, columns, cells))


def _cell(key: str, value: object) -> str:
    return of(value)[:19].replace("T", " ") if key == "at" else of(value)
