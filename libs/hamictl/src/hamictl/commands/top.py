"""`hamictl top`: current use of cards, live on a terminal; and tables of nodes and pods.

The used amount of a node is known if each of its cards is measured, that of a pod if each of its
slices is; the mean of cores is over all cards of the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from hamictl.commands.named import ask
from hamictl.commands.options import AllNamespaces, Answered, InNamespace, kind_of
from hamictl.commands.runner import run
from hamictl.commands.top_rows import (
    SORTS,
    TopLook,
    chosen,
    heading,
    passes,
    top_look,
    top_records,
)
from hamictl.output import render
from hamictl.output.records import TABLE, UNKNOWN, OutputFormat, Records, Row, TableColumn
from hamictl.output.terminal import console, note
from hamictl.questions import QuestionClient
from hamictl.target import find_target
from hamictl.view.named import ANY, cell

TABLE_SORTS: Mapping[str, tuple[str, ...]] = {
    "node": (),
    "memory": ("held_memory_bytes", "memory_bytes"),
    "used": ("used_memory_bytes",),
    "cores": ("held_core_ratio", "core_ratio"),
}
"""Sort orders -> the field of a node or pod, the largest first; without one: by name."""


def node_rows(cards: Iterable[Row]) -> list[dict[str, Any]]:
    """Return a row per node from the answer to `cards`."""
    by_node: dict[str, list[Row]] = {}
    for card in cards:
        by_node.setdefault(str(card["node"]), []).append(card)
    return [_node(name, found) for name, found in by_node.items()]


def _node(name: str, cards: Sequence[Row]) -> dict[str, Any]:
    used_cores = _sum(card["used_core_ratio"] for card in cards)
    held_cores = sum(card["held_core_ratio"] for card in cards)
    return {
        "node": name,
        "type": ", ".join(sorted({str(card["type"]) for card in cards})),
        "card_count": len(cards),
        "held_card_count": sum(bool(card["held_slot_count"]) for card in cards),
        "sick_card_count": sum(not card["healthy"] for card in cards),
        "cordoned_card_count": sum(bool(card["cordoned"]) for card in cards),
        "measured_card_count": sum(card["used_memory_bytes"] is not None for card in cards),
        "memory_bytes": sum(card["memory_bytes"] for card in cards),
        "held_memory_bytes": sum(card["held_memory_bytes"] for card in cards),
        "used_memory_bytes": _sum(card["used_memory_bytes"] for card in cards),
        "held_core_ratio": round(held_cores / len(cards), 6),
        "used_core_ratio": None if used_cores is None else round(used_cores / len(cards), 6),
    }


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum; None if a part is unknown."""
    total: float = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def rows_shown(
    rows: Iterable[Row], *, filter_text: str = "", problems: bool = False, sort: str = "node"
) -> list[Row]:
    """Return the rows with the text (`!text`: without it), sorted; unknown is last.

    `problems`: only nodes with an unhealthy or cordoned card.
    """
    found = [
        row
        for row in rows
        if passes(filter_text, _text(row))
        and (not problems or row["sick_card_count"] or row["cordoned_card_count"])
    ]
    return sorted(found, key=lambda row: _rank(row, TABLE_SORTS[sort]))


def _text(row: Row) -> str:
    pod = f"{row['namespace']}/{row['pod_name']}" if "pod_name" in row else row["type"]
    return f"{row['node']} {pod}".lower()


def _rank(row: Row, fields: Sequence[str]) -> tuple[bool, float, str, str, str]:
    value = next((row[name] for name in fields if name in row), 0)
    names = (str(row.get(key) or "") for key in ("node", "namespace", "pod_name"))
    node, namespace, pod = names
    return value is None, 0.0 if value is None else -float(value), node, namespace, pod


def node_records(rows: Sequence[Row], as_of: str) -> Records:
    """Return the table of nodes."""
    return Records(
        kind="TopNode",
        plural="nodes with cards",
        columns=(
            _column("NODE", "node"),
            _of_cards("HELD", "held_card_count"),
            _column("MEMORY", "memory_bytes"),
            _column("GRANTED-MEMORY", "held_memory_bytes"),
            _column("USED-MEMORY", "used_memory_bytes"),
            TableColumn("GRANTED-CORE", _granted_cores, "held_core_ratio"),
            _column("USED-CORE", "used_core_ratio"),
            TableColumn("TROUBLE", _trouble),
            _of_cards("MEASURED", "measured_card_count", wide=True),
            _column("MODEL", "type", wide=True),
        ),
        rows=rows,
        name=lambda row: f"node/{row['node']}",
        as_of=as_of,
    )


def pod_records(rows: Sequence[Row], as_of: str) -> Records:
    """Return the table of pods with cards; names that the user may not read are `other`."""
    return Records(
        kind="TopPod",
        plural="pods that hold cards",
        columns=(
            _column("NAMESPACE", "namespace"),
            TableColumn("POD", lambda row: str(row["pod_name"] or "other"), "pod_name"),
            _column("NODE", "node"),
            _column("CARDS", "card_count"),
            _column("GRANTED-MEMORY", "memory_bytes"),
            _column("USED-MEMORY", "used_memory_bytes"),
            _column("GRANTED-CORE", "core_ratio"),
            _column("USED-CORE", "used_core_ratio"),
            _column("SAMPLED", "sampled_at", wide=True),
            _column("UID", "pod_uid", wide=True),
        ),
        rows=rows,
        name=lambda row: f"pod/{row['namespace'] or UNKNOWN}/{row['pod_name'] or 'other'}",
        as_of=as_of,
    )


def _granted_cores(row: Row) -> str:
    """Return the granted share of the node's cores, or `any` if slices have no share."""
    if not row["held_core_ratio"] and row["held_card_count"]:
        return ANY
    return cell("held_core_ratio", row["held_core_ratio"], UNKNOWN)


def _trouble(row: Row) -> str:
    named = (("sick_card_count", "unhealthy"), ("cordoned_card_count", "cordoned"))
    return ", ".join(f"{row[key]} {state}" for key, state in named if row[key]) or "-"


def _of_cards(header: str, key: str, *, wide: bool = False) -> TableColumn:
    return TableColumn(header, lambda row: f"{row[key]} of {row['card_count']}", key, wide)


def _column(header: str, key: str, *, wide: bool = False) -> TableColumn:
    return TableColumn(header, lambda row: cell(key, row.get(key), UNKNOWN), key, wide)


KINDS = {
    **dict.fromkeys(("cards", "card", "devices", "device"), "cards"),
    **dict.fromkeys(("nodes", "node", "no"), "nodes"),
    **dict.fromkeys(("pods", "pod", "po"), "pods"),
}
"""Accepted names -> the kind that is shown."""


def top(
    kind: Annotated[
        str,
        typer.Argument(
            help="cards (live on a terminal), nodes or pods",
            autocompletion=lambda: list(dict.fromkeys(KINDS.values())),
        ),
    ] = "cards",
    once: Annotated[
        bool, typer.Option("--once", "-1", help="print once (default: live on a terminal)")
    ] = False,
    text: Annotated[
        str, typer.Option("--filter", help="show rows with this text; !TEXT: without it")
    ] = "",
    problems: Annotated[
        bool, typer.Option("--problems", "-z", help="show only unhealthy or cordoned cards")
    ] = False,
    sort: Annotated[
        str, typer.Option("--sort", help=f"order: {', '.join(SORTS.values())}")
    ] = "node",
    namespace: InNamespace = "",
    all_namespaces: AllNamespaces = False,
    output: Answered = TABLE,
) -> None:
    """Show granted and used memory and cores of cards, nodes or pods."""
    wanted = kind_of(kind, KINDS)
    orders = list(SORTS.values() if wanted == "cards" else TABLE_SORTS)
    if sort not in orders:
        raise typer.BadParameter(f"{sort!r}: use one of {', '.join(orders)}", param_hint="--sort")
    if namespace and wanted != "pods":
        raise typer.BadParameter(
            f"{wanted} have no namespace; use `hamictl top pods -n {namespace}`",
            param_hint="--namespace",
        )
    if problems and wanted == "pods":
        raise typer.BadParameter(
            "works with cards and nodes only, not with pods", param_hint="--problems"
        )
    if wanted != "cards":
        space = "" if all_namespaces else namespace
        _table(wanted, space, text=text, problems=problems, sort=sort, output=output)
        return
    found = run(look_at(QuestionClient(find_target())))
    if console.is_terminal and output.for_people and not once:
        # Imported here: other verbs, and rows, need no screen.
        from hamictl.commands.top_screen import TopScreen

        TopScreen(found, filter_text=text, problems=problems, sort=sort).run()
        return
    if output.for_people:
        note(heading(found))
    cards = chosen(found, filter_text=text, problems=problems, sort=sort)
    render.write(top_records(found, cards), output)


def _table(
    kind: str, namespace: str, *, text: str, problems: bool, sort: str, output: OutputFormat
) -> None:
    """Print nodes or pods once in a table, like `kubectl top`."""
    found = ask("cards", {}) if kind == "nodes" else ask("pod-use", {"namespace": namespace})
    rows = node_rows(found.rows) if kind == "nodes" else found.rows
    shown = rows_shown(rows, filter_text=text, problems=problems, sort=sort)
    records = node_records if kind == "nodes" else pod_records
    render.write(records(shown, found.as_of), output)


async def look_at(client: QuestionClient) -> TopLook:
    """Read the present state of the cluster. Raises: HamiError."""
    cards, slices, reasons = await asyncio.gather(
        client.ask("cards", {}),
        client.ask("what-runs-where", {}),
        client.ask("pending-reasons", {}),
    )
    return top_look(cards.rows, slices.rows, reasons.rows, as_of=cards.as_of)
