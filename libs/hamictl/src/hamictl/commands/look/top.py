"""`hamictl top`: cards as they are used now, live on a terminal, rows in a pipe; nodes and pods."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from hamictl.commands.look import top_tables
from hamictl.commands.look.top_rows import SORTS, TopLook, chosen, heading, top_look, top_records
from hamictl.commands.options import AllNamespaces, Answered, InNamespace
from hamictl.commands.past.named import ask
from hamictl.commands.runner import run
from hamictl.output import render
from hamictl.output.formats import TABLE, OutputFormat
from hamictl.output.terminal import console, note
from hamictl.questions import QuestionClient
from hamictl.settings import Settings
from hamictl.target import find_target

KINDS = {
    **dict.fromkeys(("cards", "card", "devices", "device"), "cards"),
    **dict.fromkeys(("nodes", "node", "no"), "nodes"),
    **dict.fromkeys(("pods", "pod", "po"), "pods"),
}
"""Each name that is understood -> what is shown."""


def top(
    kind: Annotated[
        str,
        typer.Argument(
            help="cards, live; nodes or pods, once",
            autocompletion=lambda: list(dict.fromkeys(KINDS.values())),
        ),
    ] = "cards",
    once: Annotated[bool, typer.Option("--once", "-1", help="once, not live")] = False,
    text: Annotated[
        str, typer.Option("--filter", help="rows with this text; !TEXT: without it")
    ] = "",
    problems: Annotated[bool, typer.Option("--problems", "-z", help="sick cards alone")] = False,
    sort: Annotated[str, typer.Option("--sort", help=", ".join(SORTS.values()))] = "node",
    namespace: InNamespace = "",
    all_namespaces: AllNamespaces = False,
    output: Answered = TABLE,
) -> None:
    """Show what is granted and used of each card, live; or of each node or pod, once."""
    if kind not in KINDS:
        raise typer.BadParameter(
            f"{kind!r}: {', '.join(dict.fromkeys(KINDS.values()))} is wanted", param_hint="KIND"
        )
    wanted = KINDS[kind]
    orders = list(SORTS.values() if wanted == "cards" else top_tables.SORTS)
    if sort not in orders:
        raise typer.BadParameter(f"{sort!r}: {', '.join(orders)} is wanted", param_hint="--sort")
    if namespace and wanted != "pods":
        raise typer.BadParameter(
            f"{wanted} are of no namespace: `hamictl top pods -n {namespace}` has its pods",
            param_hint="--namespace",
        )
    if problems and wanted == "pods":
        raise typer.BadParameter("cards and nodes have it, pods do not", param_hint="--problems")
    if wanted != "cards":
        space = "" if all_namespaces else namespace
        _table(wanted, space, text=text, problems=problems, sort=sort, output=output)
        return
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


def _table(
    kind: str, namespace: str, *, text: str, problems: bool, sort: str, output: OutputFormat
) -> None:
    """Nodes or pods, as `kubectl top` has them: once, in a table."""
    found = ask("cards", {}) if kind == "nodes" else ask("pod-use", {"namespace": namespace})
    rows = top_tables.node_rows(found.rows) if kind == "nodes" else found.rows
    shown = top_tables.rows_shown(rows, filter_text=text, problems=problems, sort=sort)
    records = top_tables.node_records if kind == "nodes" else top_tables.pod_records
    render.write(records(shown, found.as_of), output)


async def look_at(client: QuestionClient) -> TopLook:
    """The cluster as it is now. Raises: HamiError."""
    cards, slices, reasons = await asyncio.gather(
        client.ask("cards", {}),
        client.ask("what-runs-where", {}),
        client.ask("pending-reasons", {}),
    )
    return top_look(cards.rows, slices.rows, reasons.rows, as_of=cards.as_of)
