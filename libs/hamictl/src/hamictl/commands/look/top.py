"""`hamictl top`: cards as they are used now; live on a terminal, rows in a pipe."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from hamictl.commands.look.top_rows import SORTS, TopLook, chosen, heading, top_look, top_records
from hamictl.commands.options import Answered
from hamictl.commands.runner import run
from hamictl.output import render
from hamictl.output.formats import TABLE
from hamictl.output.terminal import console, note
from hamictl.questions import QuestionClient
from hamictl.settings import Settings
from hamictl.target import find_target


def top(
    once: Annotated[bool, typer.Option("--once", "-1", help="once, not live")] = False,
    text: Annotated[
        str, typer.Option("--filter", help="rows with this text; !TEXT: without it")
    ] = "",
    problems: Annotated[bool, typer.Option("--problems", "-z", help="sick cards alone")] = False,
    sort: Annotated[str, typer.Option("--sort", help=", ".join(SORTS.values()))] = "node",
    output: Answered = TABLE,
) -> None:
    """Show what is granted and used of each card, live."""
    if sort not in SORTS.values():
        raise typer.BadParameter(
            f"{sort!r}: {', '.join(SORTS.values())} is wanted", param_hint="--sort"
        )
    if once or not console.is_terminal or not output.for_people:
        found = run(look_at(QuestionClient(find_target(Settings()))))
        if output.for_people:
            note(heading(found))
        cards = chosen(found, filter_text=text, problems=problems, sort=sort)
        render.write(top_records(found, cards), output)
        return
    first = run(look_at(QuestionClient(find_target(Settings()))))
    # Here: all other verbs, and rows, are shown without it.
    from hamictl.commands.look.top_screen import TopScreen

    TopScreen(first, filter_text=text, problems=problems, sort=sort).run()


async def look_at(client: QuestionClient) -> TopLook:
    """The cluster as it is now. Raises: HamiError."""
    cards, slices, reasons = await asyncio.gather(
        client.ask("cards", {}),
        client.ask("what-runs-where", {}),
        client.ask("pending-reasons", {}),
    )
    return top_look(cards.rows, slices.rows, reasons.rows, as_of=cards.as_of)
