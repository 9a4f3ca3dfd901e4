"""Run several policies on the same arrivals, with a progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from hamicommon.errors import InvalidRequest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hamireplay.arriving import Course, Summary, run
from hamireplay.churn import ChurnCourse, Stay, Window, run_churn
from hamireplay.policies import HostChoice, cluster_under
from hamireplay.schedule import arrivals, by_load, offered_percent, tie_order
from hamireplay.trace import Trace, TraceNode, TracePod

MAX_PODS = 1_000_000
"""Maximum number of pods of one run."""

Arrived = Mapping[str, Summary[Course]]
"""Results by policy."""
Churned = Mapping[str, Summary[ChurnCourse]]
"""Results by policy."""


def arriving(
    trace: Trace,
    policies: Sequence[str],
    seeds: Sequence[int],
    load: float,
    hosts: HostChoice = HostChoice.POLICY,
) -> Arrived:
    """Replay pods that arrive and stay. Raises: InvalidRequest."""
    courses: dict[str, list[Course]] = {name: [] for name in policies}
    with _bar() as bar:
        for seed in seeds:
            order, nodes = _order(trace, seed, load), tie_order(trace.nodes, seed)
            for name in policies:
                with _task(bar, f"{name}, seed {seed}", len(order)) as advance:
                    course = run(
                        order,
                        cluster_under(name, trace, nodes, hosts),
                        capacity_milli=trace.capacity_milli,
                        card_memory_mib=trace.card_memory_mib,
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
) -> Mapping[float, Churned]:
    """Replay pods that come and go, at each mean load. Raises: InvalidRequest."""
    found: dict[float, dict[str, list[ChurnCourse]]] = {
        load: {name: [] for name in policies} for load in mean_loads
    }
    with _bar() as bar:
        for seed in seeds:
            order, nodes = _order(trace, seed, total), tie_order(trace.nodes, seed)
            for load in mean_loads:
                stays, window = by_load(
                    order,
                    seed,
                    mean_load=load,
                    capacity_milli=trace.capacity_milli,
                    card_memory_mib=trace.card_memory_mib,
                    patience_s=patience_s,
                )
                for name in policies:
                    label = f"{name}, {load:.0%}, seed {seed}"
                    course = _run_churn(trace, name, nodes, hosts, stays, window, bar, label)
                    found[load][name].append(course)
    return {
        load: {name: Summary(courses=each) for name, each in by_name.items()}
        for load, by_name in found.items()
    }


def as_it_was(
    trace: Trace, policies: Sequence[str], stays: Sequence[Stay], window: Window
) -> tuple[float, Churned]:
    """Replay pods at their recorded times.

    Returns: percent of the cards that they asked for on average, and what became of them.
    """
    policy = HostChoice.POLICY
    with _bar() as bar:
        found = {
            name: _run_churn(trace, name, trace.nodes, policy, stays, window, bar, name)
            for name in policies
        }
    load = offered_percent(
        stays,
        window,
        capacity_milli=trace.capacity_milli,
        card_memory_mib=trace.card_memory_mib,
    )
    return load, {name: Summary(courses=[course]) for name, course in found.items()}


def _run_churn(
    trace: Trace,
    name: str,
    nodes: Sequence[TraceNode],
    hosts: HostChoice,
    stays: Sequence[Stay],
    window: Window,
    bar: Progress,
    label: str,
) -> ChurnCourse:
    with _task(bar, label, len(stays)) as advance:
        return run_churn(
            stays,
            cluster_under(name, trace, nodes, hosts),
            window,
            capacity_milli=trace.capacity_milli,
            card_memory_mib=trace.card_memory_mib,
            on_pod=advance,
        )


def _order(trace: Trace, seed: int, load: float) -> list[TracePod]:
    order = arrivals(trace, seed, load=load, card_memory_mib=trace.card_memory_mib)
    if not order:
        raise InvalidRequest(
            f"no pod arrives: every one asks for more than --load {load:.0%} of {trace.cards} "
            "cards; expected a larger --load, or more cards"
        )
    if len(order) > MAX_PODS:
        raise InvalidRequest(
            f"{len(order)} pods would arrive: expected at most {MAX_PODS}; use a lower --load"
        )
    return order


@contextmanager
def _task(bar: Progress, label: str, total: int) -> Iterator[partial[None]]:
    task = bar.add_task(label, total=total)
    yield partial(bar.advance, task)
    bar.remove_task(task)


def _bar() -> Progress:
    """Return a progress bar on standard error, shown only on a terminal."""
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
