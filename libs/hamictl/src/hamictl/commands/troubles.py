"""`hamictl drift` and `dead-letters`: what was found different, and what could not be handled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from hamictl.commands.options import Answered
from hamictl.commands.runner import console, run
from hamictl.exit_codes import ExitCode
from hamictl.output import render
from hamictl.output.records import TABLE, OutputFormat, Records, TableColumn
from hamictl.output.terminal import shown_time
from hamictl.scheduler_client import Row, SchedulerClient
from hamictl.target import find_target
from hamictl.view.lists import of

Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="the latest so many")]


def drift(
    kind: Annotated[str, typer.Option("--class", help="of this class only")] = "",
    limit: Limit = 30,
    output: Answered = TABLE,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="end with status 6 when one is not repaired")
    ] = False,
) -> None:
    """Show where ledger, pods and nodes differed, and whether it was repaired."""
    query = {"limit": str(limit), **({"class": kind} if kind else {})}
    rows = run(_rows("/v1/drift", **query))
    _show("Drift", "differences", ("AT", "CLASS", "SUBJECT", "REPAIRED", "DETAIL"), rows, output)
    if exit_code and not all(row["repaired"] for row in rows):
        raise typer.Exit(ExitCode.ANSWER_IS_NO)


def dead_letters(
    send_again: Annotated[
        int | None, typer.Option("--send-again", help="number of a letter whose cause is repaired")
    ] = None,
    limit: Limit = 30,
    output: Answered = TABLE,
) -> None:
    """Show messages that no service could handle, with the reason; or send one again."""
    if send_again is not None:
        letter = run(_send_again(send_again))
        console.print(f"letter {send_again} sent again on {letter['subject']}", markup=False)
        return
    rows = run(_rows("/v1/dead-letters", limit=str(limit)))
    columns = ("SEQUENCE", "AT", "SUBJECT", "USER", "REASON")
    _show("DeadLetter", "dead letters", columns, rows, output)


async def _rows(path: str, **query: str) -> list[Row]:
    return await _client().rows(path, **query)


async def _send_again(number: int) -> Any:
    return await _client().post(f"/v1/dead-letters/{number}/send")


def _client() -> SchedulerClient:
    """Raises InvalidRequest where no scheduler is known; `run` makes a sentence of it."""
    return find_target().scheduler_client()


def _show(
    kind: str, plural: str, headers: tuple[str, ...], rows: list[Row], output: OutputFormat
) -> None:
    columns = [TableColumn(header, _cell(header.lower()), header.lower()) for header in headers]
    name = headers[0].lower()
    shown = Records(
        kind=kind, plural=plural, columns=columns, rows=rows, name=lambda row: of(row[name])
    )
    render.write(shown, output)


def _cell(key: str) -> Callable[[Mapping[str, Any]], str]:
    if key == "at":
        return lambda row: shown_time(row[key])
    return lambda row: of(row[key])
