"""Format the results of a replay as tables, sentences and JSON. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from hamicommon.clipping import clip
from hamicommon.placement.host_scores import EXTENDER_WEIGHT

from hamireplay.arriving import Course, HasCurve, Summary
from hamireplay.churn import ChurnCourse
from hamireplay.history import PodHistory
from hamireplay.policies import HostChoice
from hamireplay.runs import Arrived, Churned
from hamireplay.trace import KINDS, Trace, without_a_card

LOADS = (80, 90, 95, 100, 115, 130)
"""Percent of the cards that were requested, for which the table has columns."""

_CHURN_COLUMNS = (
    "POLICY",
    "IN USE",
    "WAITING",
    "PODS WAITING",
    "HAD TO WAIT",
    "REFUSED",
    "MEAN WAIT",
    "LONGEST",
    "CARD-HOURS",
)

ByLoad = Mapping[float, Churned]
"""Results by mean load (1.0: all cards) and policy."""


class ResultTable(NamedTuple):
    """Table as text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def arriving_tables(
    trace: Trace, seeds: Sequence[int], load: float, found: Arrived
) -> Iterator[ResultTable]:
    """Return tables of the cards in use by load, and of refused pods by kind."""
    loads = [at for at in LOADS if at < load * 100] + [round(load * 100)]
    runs = f"{len(seeds)} orders" if len(seeds) > 1 else f"order {seeds[0]}"
    yield ResultTable(
        f"Cards in use, percent of {trace.cards}, when so much was asked for ({runs})",
        ("POLICY", *(f"{at} %" for at in loads), "STRANDED"),
        [
            (name, *(_with_deviation(one, _in_use_at(at)) for at in loads), _stranded_text(one))
            for name, one in found.items()
        ],
    )
    yield from _by_kind("Pods refused", found)


def churn_tables(trace: Trace, seeds: Sequence[int], found: ByLoad) -> Iterator[ResultTable]:
    """Return tables by load of the means over time, and of pods that never got a place."""
    for load, policies in found.items():
        runs = f", {len(seeds)} orders" if len(seeds) > 1 else ""
        first = next(iter(policies.values()))
        arrived = first.mean(lambda course: course.arrived)
        yield ResultTable(
            f"{arrived:.0f} pods ask for {100 * load:.1f} % of {trace.cards} cards in the mean; in "
            f"use and waiting are percent of the cards, means over the time{runs}",
            _CHURN_COLUMNS,
            [(name, *_churn_row(one, first)) for name, one in policies.items()],
        )
        yield from _by_kind("Pods that never got a place", policies)


def _by_kind(title: str, found: Mapping[str, Summary[Any]]) -> Iterator[ResultTable]:
    kinds = [kind for kind in KINDS if any(one.mean_refused(kind) for one in found.values())]
    if kinds:
        rows = [
            (name, *(f"{one.mean_refused(kind):g}" for kind in kinds))
            for name, one in found.items()
        ]
        yield ResultTable(title, ("POLICY", *(kind.upper() for kind in kinds)), rows)


def _in_use_at(load: int) -> Callable[[Course], float]:
    return lambda course: course.at(load)


def _with_deviation(summary: Summary[Any], of: Callable[[Any], float], form: str = ".2f") -> str:
    mean = format(summary.mean(of), form)
    many = len(summary.courses) > 1
    return f"{mean} ± {format(summary.deviation(of), form)}" if many else mean


def _stranded_text(summary: Summary[Course]) -> str:
    known = [course.stranded for course in summary.courses if course.stranded is not None]
    return f"{sum(known) / len(known):.2f}" if known else "-"


def _churn_row(one: Summary[ChurnCourse], first: Summary[ChurnCourse]) -> Iterator[str]:
    yield _with_deviation(one, lambda course: course.in_use)
    yield _with_deviation(one, lambda course: course.waiting)
    yield _with_deviation(one, lambda course: course.waiting_pods, ".1f")
    yield _with_deviation(one, _waited_count, ".0f")
    yield _with_deviation(one, _refused_count, ".0f")
    yield _time(one.mean(lambda course: course.mean_wait_s))
    yield _time(one.mean(lambda course: course.longest_wait_s))
    hours, base = _hours(one), _hours(first)
    digits = _digits(base)
    difference = "" if one is first else f" ({hours - base:+.{digits}f})"
    yield f"{hours:.{digits}f}{difference}"


def _waited_count(course: ChurnCourse) -> int:
    return sum(course.waited.values())


def _refused_count(course: HasCurve) -> int:
    return sum(course.refused.values())


def _hours(one: Summary[ChurnCourse]) -> float:
    return one.mean(lambda course: course.card_hours)


def _digits(hours: float) -> int:
    """Return the number of decimals, so that a short history is not all zeros."""
    return 0 if hours >= 1000 else 1 if hours >= 10 else 3


def _time(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def churn_curves(found: ByLoad) -> dict[str, Mapping[int, float]]:
    """Return cards in use over time, a curve per policy and load."""
    return {
        name if len(found) == 1 else f"{name}, {load:.0%}": one.curve()
        for load, policies in found.items()
        for name, one in policies.items()
    }


def notes(trace: Trace, hosts: HostChoice = HostChoice.POLICY) -> Iterator[str]:
    """Return sentences about oddities of the files, and about how pods without cards are placed."""
    if trace.unread:
        yield f"Columns that are not looked at: {_some([clip(name) for name in trace.unread])}."
    lacking = without_a_card(trace)
    if lacking:
        yield (
            f"{sum(lacking.values())} pods name only models that no node has "
            f"({_some([clip(name, 60) for name in lacking])}): every policy refuses them."
        )
    if hosts is HostChoice.EXTENDER:
        yield (
            "Pods without cards were placed by kube-scheduler: its default scores, and ours with "
            f"weight {EXTENDER_WEIGHT}."
        )
    elif hosts is not HostChoice.POLICY:
        yield f"Pods without cards were placed by kube-scheduler's own score, {hosts}."


def _some(names: Sequence[str]) -> str:
    """Join the first five, and count the others."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def sentences(history: PodHistory, found: Churned) -> Iterator[str]:
    """Compare the policies with the first in sentences of card-hours and pods; name unknowns."""
    names = list(found)
    arrived = min((pod.arrives_s or 0.0 for pod in history.trace.pods), default=0.0)
    begins = history.since + timedelta(seconds=arrived)
    for name in names[1:]:
        one, first = found[name], found[names[0]]
        yield (
            f"From {begins:%Y-%m-%d %H:%M} to {history.until:%Y-%m-%d %H:%M} UTC {name} "
            f"would have had {_hours_compared(one, first, names[0])}; "
            f"{_pods_compared(one, first, _waited_count)} would have had to wait, "
            f"and {_pods_compared(one, first, _refused_count)} would never have got a place."
        )
    never = sum(not pod.ran for pod in history.trace.pods)
    if never:
        yield (
            f"{_plural(never, 'pod')} never got a place in truth; where a policy has one for such "
            "a pod, it runs as long as the median of the others."
        )
    if history.granted_only:
        yield (
            f"Of {_plural(history.granted_only, 'pod')} only what was granted is known: the "
            "decisions are no longer kept (HAMI_SCHEDULER_DECISION_DAYS), nor is the CPU that was "
            "asked for."
        )
    if history.without_host:
        yield (
            f"The CPU of {_plural(history.without_host, 'node')} is not known (no cluster "
            "answers): it never runs out here."
        )


def _hours_compared(one: Summary[ChurnCourse], first: Summary[ChurnCourse], name: str) -> str:
    digits = _digits(_hours(first))
    gained = round(_hours(one) - _hours(first), digits)
    if not gained:
        return f"as many card-hours in use as {name}"
    what = "more" if gained > 0 else "less"
    return f"{abs(gained):.{digits}f} card-hours {what} in use than {name}"


def _pods_compared(
    one: Summary[ChurnCourse], first: Summary[ChurnCourse], of: Callable[[ChurnCourse], int]
) -> str:
    """Compare numbers of pods: each summary has one run."""
    more = round(one.mean(of) - first.mean(of))
    return (
        f"{_plural(abs(more), 'pod')} {'more' if more > 0 else 'fewer'}" if more else "as many pods"
    )


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _about(trace: Trace, seeds: Sequence[int]) -> dict[str, Any]:
    return {
        "nodes": len(trace.nodes),
        "cards": trace.cards,
        "pods": len(trace.pods),
        "seeds": list(seeds),
        "notes": list(notes(trace)),
    }


def arriving_json(
    trace: Trace, seeds: Sequence[int], load: float, found: Arrived
) -> dict[str, Any]:
    """Return all results as JSON, with the whole curve of each order."""
    return _about(trace, seeds) | {
        "load_percent": round(load * 100),
        "policies": {
            name: {
                "mean": _round_curve(one.curve(), 4),
                "deviation": _round_curve(
                    {at: one.deviation(_in_use_at(at)) for at in one.curve()}, 4
                ),
                "runs": [
                    {
                        "seed": seed,
                        "arrived": course.arrived,
                        "placed": course.placed,
                        "failed": dict(course.refused),
                        "stranded_percent": course.stranded,
                        "allocated": _round_curve(course.curve, 4),
                    }
                    for seed, course in zip(seeds, one.courses, strict=True)
                ],
            }
            for name, one in found.items()
        },
    }


def churn_json(trace: Trace, seeds: Sequence[int], found: ByLoad) -> dict[str, Any]:
    """Return all results as JSON, with each run."""
    return _about(trace, seeds) | {
        "loads": [
            {
                "mean_load_percent": round(100 * load, 2),
                "policies": {
                    name: {
                        "card_hours": round(_hours(one), 2),
                        "card_hours_gained": round(
                            _hours(one) - _hours(next(iter(policies.values()))), 2
                        ),
                        "runs": [_run(course) for course in one.courses],
                    }
                    for name, one in policies.items()
                },
            }
            for load, policies in found.items()
        ],
    }


def history_json(history: PodHistory) -> dict[str, Any]:
    """Return the period of a history as JSON, for `churn_json`."""
    return {
        "since": history.since.isoformat(),
        "until": history.until.isoformat(),
        "pods_known_by_their_grants_alone": history.granted_only,
        "nodes_without_known_cpu": history.without_host,
    }


def _run(course: ChurnCourse) -> dict[str, Any]:
    return {
        "arrived": course.arrived,
        "in_use_percent": round(course.in_use, 4),
        "waiting_percent": round(course.waiting, 4),
        "waiting_pods": round(course.waiting_pods, 3),
        "card_hours": round(course.card_hours, 3),
        "waited": dict(course.waited),
        "refused": dict(course.refused),
        "mean_wait_s": round(course.mean_wait_s, 3),
        "longest_wait_s": round(course.longest_wait_s, 3),
        "in_use_over_time": _round_curve(course.curve, 3),
    }


def _round_curve(curve: Mapping[int, float], digits: int) -> dict[str, float]:
    return {str(at): round(value, digits) for at, value in curve.items()}
