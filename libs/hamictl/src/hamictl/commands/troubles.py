"""`hamictl drift` and `dead-letters`: differences that were found, messages that failed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hamictl.commands.options import Answered
from hamictl.commands.runner import console, run
from hamictl.exit_codes import ExitCode
from hamictl.output import render
from hamictl.output.records import (
    TABLE,
    OutputFormat,
    Records,
    plain_column,
    text_of,
    time_column,
)
from hamictl.output.terminal import note_renamed
from hamictl.scheduler_client import Row
from hamictl.target import find_target

Limit = Annotated[
    int, typer.Option("--limit", min=1, max=1000, help="show at most this many, the latest first")
]


def drift(
    kind: Annotated[
        str, typer.Option("--class", help="only this class, such as grant-lost (default: all)")
    ] = "",
    limit: Limit = 30,
    output: Answered = TABLE,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="exit with 6 if a difference is not repaired")
    ] = False,
) -> None:
    """List differences between ledger, pods and nodes, and whether they are repaired."""
    query = {"limit": str(limit), **({"class": kind} if kind else {})}
    rows = run(_rows("/v1/drift", **query))
    plural = f"differences of class {kind}" if kind else "differences"
    _show("Drift", plural, ("AT", "CLASS", "SUBJECT", "REPAIRED", "DETAIL"), rows, output)
    if exit_code and not all(row["repaired"] for row in rows):
        raise typer.Exit(ExitCode.ANSWER_IS_NO)


def dead_letters(
    retry: Annotated[
        int | None,
        typer.Option(
            "--retry",
            metavar="SEQUENCE",
            help="redeliver this dead letter (repair its cause first)",
        ),
    ] = None,
    send_again: Annotated[int | None, typer.Option("--send-again", hidden=True)] = None,
    limit: Limit = 30,
    output: Answered = TABLE,
) -> None:
    """List messages that no service could handle, or redeliver one."""
    if send_again is not None:
        note_renamed("--send-again", "--retry")
        retry = send_again
    if retry is not None:
        letter = run(_redeliver(retry))
        console.print(f"letter {retry} redelivered on {letter['subject']}", markup=False)
        return
    rows = run(_rows("/v1/dead-letters", limit=str(limit)))
    columns = ("SEQUENCE", "AT", "SUBJECT", "USER", "REASON")
    _show("DeadLetter", "dead letters", columns, rows, output)


async def _rows(path: str, **query: str) -> list[Row]:
    return await find_target().scheduler_client().rows(path, **query)


async def _redeliver(number: int) -> Any:
    return await find_target().scheduler_client().post(f"/v1/dead-letters/{number}/send")


def _show(
    kind: str, plural: str, headers: tuple[str, ...], rows: list[Row], output: OutputFormat
) -> None:
    columns = [
        time_column(header, "at") if header == "AT" else plain_column(header, header.lower())
        for header in headers
    ]
    name = headers[0].lower()
    shown = Records(
        kind=kind, plural=plural, columns=columns, rows=rows, name=lambda row: text_of(row[name])
    )
    render.write(shown, output)
