"""The runs of a replay, each policy on the same arrivals, with a bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from hamicommon.errors import InvalidRequest
from hamicommon.simulation.replay.arrivals import arrivals, tie_order
from hamicommon.simulation.replay.churn import (
    ChurnCourse,
    Churner,
    ChurnSummary,
    Stay,
    Window,
    run_churn,
)
from hamicommon.simulation.replay.course import Course, Summary, run
from hamicommon.simulation.replay.hosts import HostChoice
from hamicommon.simulation.replay.policies import placer
from hamicommon.simulation.replay.schedule import by_load, offered
from hamicommon.simulation.replay.trace import Trace, TracePod, usual_card_memory
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

MOST_PODS = 1_000_000
"""Of one run: what fits into memory and a working day."""

Churned = dict[str, ChurnSummary]


def arriving(
    trace: Trace,
    policies: Sequence[str],
    seeds: Sequence[int],
    load: float,
    hosts: HostChoice = HostChoice.POLICY,
) -> dict[str, Summary]:
    """Pods arrive and stay. Raises: InvalidRequest."""
    card_memory = usual_card_memory(trace.nodes)
    courses: dict[str, list[Course]] = {name: [] for name in policies}
    with _bar() as bar:
        for seed in seeds:
            order = _order(trace, seed, load, card_memory)
            nodes = tie_order(trace.nodes, seed)
            for name in policies:
                with _task(bar, f"{name}, seed {seed}", len(order)) as advance:
                    course = run(
                        order,
                        placer(name, trace, nodes, hosts),
                        capacity_milli=trace.cards * 1000,
                        card_memory_mib=card_memory,
                        on_pod=advance,
                    )
                courses[name].append(course)
    return {name: Summary(courses=each) for name, each in courses.items()}


def coming_and_going(
    trace: Trace,
    policies: Sequence[str],
    seeds: Sequence[int],
    *,
    total: float,
    mean_loads: Sequence[float],
    patience_s: float,
    hosts: HostChoice = HostChoice.POLICY,
) -> dict[float, Churned]:
    """Pods come and go at each mean load. Raises: InvalidRequest."""
    card_memory = usual_card_memory(trace.nodes)
    found: dict[float, dict[str, list[ChurnCourse]]] = {
        load: {name: [] for name in policies} for load in mean_loads
    }
    with _bar() as bar:
        for seed in seeds:
            order = _order(trace, seed, total, card_memory)
            nodes = tie_order(trace.nodes, seed)
            for load in mean_loads:
                stays, window = by_load(
                    order,
                    seed,
                    mean_load=load,
                    capacity_milli=trace.cards * 1000,
                    card_memory_mib=card_memory,
                    patience_s=patience_s,
                )
                for name in policies:
                    label = f"{name}, {load:.0%}, seed {seed}"
                    with _task(bar, label, len(stays)) as advance:
                        under = placer(name, trace, nodes, hosts)
                        course = _churned(under, trace, stays, window, advance)
                    found[load][name].append(course)
    return {
        load: {name: ChurnSummary(courses=each) for name, each in by_name.items()}
        for load, by_name in found.items()
    }


def as_it_was(
    trace: Trace, policies: Sequence[str], stays: Sequence[Stay], window: Window
) -> tuple[float, Churned]:
    """Percent of the cards that the pods asked for in the mean, and what became of them."""
    found: Churned = {}
    with _bar() as bar:
        for name in policies:
            with _task(bar, name, len(stays)) as advance:
                under = placer(name, trace, trace.nodes)
                course = _churned(under, trace, stays, window, advance)
            found[name] = ChurnSummary(courses=[course])
    load = offered(
        stays,
        window,
        capacity_milli=trace.cards * 1000,
        card_memory_mib=usual_card_memory(trace.nodes),
    )
    return load, found


def _churned(
    under: Churner,
    trace: Trace,
    stays: Sequence[Stay],
    window: Window,
    advance: partial[None],
) -> ChurnCourse:
    return run_churn(
        stays,
        under,
        window,
        capacity_milli=trace.cards * 1000,
        card_memory_mib=usual_card_memory(trace.nodes),
        on_pod=advance,
    )


def _order(trace: Trace, seed: int, load: float, card_memory: int) -> list[TracePod]:
    order = arrivals(trace, seed, load=load, card_memory_mib=card_memory)
    if not order:
        raise InvalidRequest(
            f"no pod arrives: every one asks for more than --load {load:.0%} of {trace.cards} "
            "cards; a larger --load is wanted, or more cards"
        )
    if len(order) > MOST_PODS:
        raise InvalidRequest(
            f"{len(order)} pods would arrive: at most {MOST_PODS} are wanted; a lower --load is"
        )
    return order


@contextmanager
def _task(bar: Progress, label: str, total: int) -> Iterator[partial[None]]:
    task = bar.add_task(label, total=total)
    yield partial(bar.advance, task)
    bar.remove_task(task)


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
