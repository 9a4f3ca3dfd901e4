"""`hamictl replay`: how much of a cluster's cards a policy would have in use.

Nothing is changed anywhere. The pods arrive by `hamicommon.simulation.replay`; here files are read,
runs are counted on a bar, and the answer is written as a table, JSON or a picture.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from hamicommon.errors import InvalidRequest
from hamicommon.simulation.replay.arrivals import arrivals, tie_order
from hamicommon.simulation.replay.course import Course, Summary, run
from hamicommon.simulation.replay.openb import read_trace
from hamicommon.simulation.replay.policies import checked, placer
from hamicommon.simulation.replay.trace import Trace, usual_card_memory
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hamictl.commands.objects import Output
from hamictl.commands.replay.options import percent_of, seeds_of
from hamictl.commands.runner import console, spoken_errors
from hamictl.input_file import read_text
from hamictl.view import replay as view
from hamictl.view.replay_picture import picture

MOST_PODS = 1_000_000
"""Of one run: what fits into memory and a working day."""


def replay(
    nodes: Annotated[str, typer.Option("--nodes", help="CSV of nodes, openb's form; - is stdin")],
    pods: Annotated[str, typer.Option("--pods", help="CSV of pods, openb's form; - is stdin")],
    policy: Annotated[
        str, typer.Option("--policy", help="a comma list; docs/packing.md has them all")
    ] = "binpack,fragmentation,fgd",
    seeds: Annotated[str, typer.Option("--seeds", help="orders of arrival, such as 42-51")] = "42",
    load: Annotated[
        str, typer.Option("--load", help="percent of the cards that the arrivals ask for")
    ] = "130",
    output: Annotated[Output, typer.Option("--output", "-o")] = Output.TABLE,
    svg: Annotated[
        Path | None, typer.Option("--picture", help="an SVG: cards in use over what has arrived")
    ] = None,
) -> None:
    """Show how much of the cards a trace would get under each policy; nothing is changed.

    Every policy meets the same arrivals in the same order, and places them by the engine that
    places real pods.
    """
    with spoken_errors():
        chosen, orders = checked(policy), seeds_of(seeds)
        target = percent_of(load, "--load", least=1, most=1000)
        trace = read_trace(read_text(nodes), read_text(pods), nodes_file=nodes, pods_file=pods)
        found = _run(trace, chosen, orders, target)
        if svg is not None:
            _write(svg, picture({name: one.curve() for name, one in found.items()}))
        if output is Output.JSON:
            console.print_json(data=view.as_json(trace, orders, target, found))
            return
        for line in view.tables(trace, orders, target, found):
            console.print(line)


def _run(trace: Trace, policies: list[str], seeds: list[int], load: float) -> dict[str, Summary]:
    card_memory = usual_card_memory(trace.nodes)
    courses: dict[str, list[Course]] = {name: [] for name in policies}
    with _bar() as bar:
        for seed in seeds:
            order = arrivals(trace, seed, load=load, card_memory_mib=card_memory)
            if len(order) > MOST_PODS:
                raise InvalidRequest(
                    f"{len(order)} pods would arrive: at most {MOST_PODS} are wanted; a lower "
                    "--load is"
                )
            nodes = tie_order(trace.nodes, seed)
            for name in policies:
                task = bar.add_task(f"{name}, seed {seed}", total=len(order))
                courses[name].append(
                    run(
                        order,
                        placer(name, trace, nodes),
                        capacity_milli=trace.cards * 1000,
                        card_memory_mib=card_memory,
                        on_pod=partial(bar.advance, task),
                    )
                )
                bar.remove_task(task)
    return {name: Summary(courses=each) for name, each in courses.items()}


def _bar() -> Progress:
    """On standard error, and only where that is a terminal."""
    terminal = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=terminal,
        disable=not terminal.is_terminal,
        transient=True,
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise InvalidRequest(f"--picture {path}: not writable: {exc.strerror}") from exc
