"""`hamictl adopt`: write the running pods of a HAMi 2.x into the ledger (docs/adoption.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from hamictl.commands.objects import Output
from hamictl.commands.runner import console, run
from hamictl.output.records import text_of
from hamictl.target import find_target
from hamictl.view.lists import cores, memory, table

Row = Mapping[str, Any]

_UNITS = {"slots": "slots", "memory_mib": "MiB", "core_percent": "% of cores"}


def adoption(answer: Mapping[str, Any]) -> Iterator[Table | str]:
    """Return tables of pods, of overcommitted cards, of differing cards, and the totals."""
    rows = answer["pods"]
    shown = [row for row in rows if row["outcome"] != "held"]
    if shown:
        yield table(
            "Pods",
            ("POD", "NODE", "OUTCOME", "SLICES / REASON"),
            (
                (
                    f"{row['namespace']}/{row['name']}",
                    text_of(row["node"]),
                    _outcome(row),
                    "\n".join((*_slices(row), *filter(None, (row["sentence"],)))),
                )
                for row in shown
            ),
        )
    yield from (f"skipped: {problem}" for problem in answer["problems"])
    for card in answer["overfull"]:
        yield (
            f"overcommitted: card {card['uuid']} on {card['node']} has granted {_beyond(card)}; it "
            "gets no new slices until enough of its pods have ended"
        )
    for card in answer["unaccounted"]:
        yield (
            f"not in the ledger: {', '.join(card['pods'])} on card {card['uuid']} of "
            f"{card['node']}; cordon the card until they have ended: "
            f"kubectl annotate --overwrite node {card['node']} "
            f"hami.io/device-cordon={card['uuid']} (several cards: a comma list)"
        )
    yield _sum(answer)


def _outcome(row: Row) -> str:
    return f"{row['outcome']}: {row['why']}" if row["why"] else str(row["outcome"])


def _slices(row: Row) -> list[str]:
    return [
        f"{one['container']}: {memory(one['memory_mib'])}, {cores(one['core_percent'])}"
        f" of {one['uuid']}"
        for one in row["slices"]
    ]


def _beyond(card: Row) -> str:
    used, has = card["used"], card["has"]
    return " and ".join(
        f"{used[key]} of {has[key]} {unit}" for key, unit in _UNITS.items() if used[key] > has[key]
    )


def _sum(answer: Mapping[str, Any]) -> str:
    counts = Counter(row["outcome"] for row in answer["pods"])
    counted = ", ".join(
        f"{counts[outcome]} {phrase}"
        for outcome, phrase in (
            ("adopted", "adopted"),
            ("would adopt", "would be adopted"),
            ("held", "in the ledger already"),
            ("refused", "refused"),
        )
        if counts[outcome]
    )
    dry = "" if answer["applied"] else "; nothing was written: use --apply to adopt"
    return f"{counted or 'no pods of HAMi found'}{dry}"


# A thousand nodes are asked sixteen at a time, each for at most 5 s; most answer in milliseconds.
TIMEOUT_S = 330.0


def adopt(
    apply: Annotated[
        bool,
        typer.Option("--apply", help="adopt the pods (default: only print what would be adopted)"),
    ] = False,
    node: Annotated[
        list[str] | None,
        typer.Option("--node", help="only this node (repeatable) (default: all)"),
    ] = None,
    believe_node: Annotated[
        bool,
        typer.Option(
            "--believe-node",
            help="adopt what the node reports if a pod's annotation differs",
        ),
    ] = False,
    output: Annotated[Output, typer.Option("--output", "-o")] = Output.TABLE,
) -> None:
    """Take over the running pods of HAMi; no pod is restarted.

    Running it again is safe. Exits with 1 if a pod is refused.
    """
    answer = run(_adopt({"apply": apply, "nodes": node or [], "believe_node": believe_node}))
    if output is Output.JSON:
        console.print_json(data=answer)
    else:
        for part in adoption(answer):
            # Names and texts come from the cluster: nothing in them is markup.
            console.print(part, highlight=False, markup=False)
    if any(row["outcome"] == "refused" for row in answer["pods"]):
        raise typer.Exit(1)


async def _adopt(body: dict[str, Any]) -> Any:
    target = find_target()
    scheduler = target.scheduler_client()
    return await scheduler.post("/v1/adopt", body, timeout_s=TIMEOUT_S)
