"""What a replay found, as tables and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hamicommon.clipping import clip
from hamicommon.placement.host_scores import EXTENDER_WEIGHT
from hamicommon.simulation.replay.course import Summary
from hamicommon.simulation.replay.hosts import HostChoice
from hamicommon.simulation.replay.trace import KINDS, Trace, without_a_card
from rich.table import Table

from hamictl.view.tables import table

LOADS = (80, 90, 95, 100, 115, 130)
"""Percent of the cards that have been asked for, where the table looks."""


def tables(
    trace: Trace, seeds: Sequence[int], load: float, found: Mapping[str, Summary]
) -> Iterator[Table]:
    """Cards in use along the way, then refused pods by kind."""
    loads = [at for at in LOADS if at < load * 100] + [round(load * 100)]
    runs = f"{len(seeds)} orders" if len(seeds) > 1 else f"order {seeds[0]}"
    yield table(
        f"Cards in use, percent of {trace.cards}, when so much was asked for ({runs})",
        ("POLICY", *(f"{at} %" for at in loads), "STRANDED"),
        (
            (name, *(_with_deviation(one, at) for at in loads), _stranded(one))
            for name, one in found.items()
        ),
    )
    kinds = [kind for kind in KINDS if any(one.failed(kind) for one in found.values())]
    if kinds:
        yield table(
            "Pods refused",
            ("POLICY", *(kind.upper() for kind in kinds)),
            ((name, *(f"{one.failed(kind):g}" for kind in kinds)) for name, one in found.items()),
        )


def _with_deviation(summary: Summary, at: int) -> str:
    mean = f"{summary.mean_at(at):.2f}"
    return f"{mean} ± {summary.deviation_at(at):.2f}" if len(summary.courses) > 1 else mean


def _stranded(summary: Summary) -> str:
    known = [course.stranded for course in summary.courses if course.stranded is not None]
    return f"{sum(known) / len(known):.2f}" if known else "-"


def notes(trace: Trace) -> Iterator[str]:
    """What is odd about the files and the pods, each one sentence."""
    if trace.unread:
        yield f"Columns that are not looked at: {_some([clip(name) for name in trace.unread])}."
    lacking = without_a_card(trace)
    if lacking:
        yield (
            f"{sum(lacking.values())} pods name only models that no node has "
            f"({_some([clip(name, 60) for name in lacking])}): every policy refuses them."
        )


def notes_on_hosts(hosts: HostChoice) -> Iterator[str]:
    """Who placed the pods without cards, unless the policies did."""
    if hosts is HostChoice.EXTENDER:
        yield (
            "Pods without cards were placed by kube-scheduler: its default scores, and ours with "
            f"weight {EXTENDER_WEIGHT}."
        )
    elif hosts is not HostChoice.POLICY:
        yield f"Pods without cards were placed by kube-scheduler's own score, {hosts}."


def _some(names: Sequence[str]) -> str:
    """The first five, and how many more there are."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def as_json(
    trace: Trace, seeds: Sequence[int], load: float, found: Mapping[str, Summary]
) -> dict[str, Any]:
    """Everything, with the whole curve of every order."""
    return {
        "nodes": len(trace.nodes),
        "cards": trace.cards,
        "pods": len(trace.pods),
        "load_percent": round(load * 100),
        "seeds": list(seeds),
        "notes": list(notes(trace)),
        "policies": {
            name: {
                "mean": {str(at): round(value, 4) for at, value in one.curve().items()},
                "deviation": {str(at): round(one.deviation_at(at), 4) for at in one.curve()},
                "runs": [
                    {
                        "seed": seed,
                        "arrived": course.arrived,
                        "placed": course.placed,
                        "failed": dict(course.failed),
                        "stranded_percent": course.stranded,
                        "allocated": {str(at): round(v, 4) for at, v in course.allocated.items()},
                    }
                    for seed, course in zip(seeds, one.courses, strict=True)
                ],
            }
            for name, one in found.items()
        },
    }
