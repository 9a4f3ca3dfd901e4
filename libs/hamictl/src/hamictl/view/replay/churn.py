"""What a replay with pods that end found, as tables and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from hamicommon.simulation.replay.churn import ChurnCourse, ChurnSummary
from hamicommon.simulation.replay.history import PodHistory
from hamicommon.simulation.replay.trace import KINDS, Trace
from rich.table import Table

from hamictl.view.replay.picture import Axes
from hamictl.view.replay.results import notes
from hamictl.view.tables import table

Found = Mapping[float, Mapping[str, ChurnSummary]]
"""By mean load (1.0: all cards) and policy."""

AXES = Axes("percent of the time", "in use, percent of the cards", from_parting=False)
_COLUMNS = (
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


def tables(trace: Trace, seeds: Sequence[int], found: Found) -> Iterator[Table]:
    """Per load: means over the time, and whose pods never got a place."""
    for load, policies in found.items():
        runs = f", {len(seeds)} orders" if len(seeds) > 1 else ""
        first = next(iter(policies.values()))
        arrived = first.mean(lambda course: course.arrived)
        yield table(
            f"{arrived:.0f} pods ask for {100 * load:.1f} % of {trace.cards} cards in the mean; in "
            f"use and waiting are percent of the cards, means over the time{runs}",
            _COLUMNS,
            ((name, *_row(one, first)) for name, one in policies.items()),
        )
        kinds = [kind for kind in KINDS if any(_refused(one, kind) for one in policies.values())]
        if kinds:
            yield table(
                "Pods that never got a place",
                ("POLICY", *(kind.upper() for kind in kinds)),
                (
                    (name, *(f"{_refused(one, kind):g}" for kind in kinds))
                    for name, one in policies.items()
                ),
            )


def _row(one: ChurnSummary, first: ChurnSummary) -> Iterator[str]:
    many = len(one.courses) > 1
    columns: tuple[tuple[Callable[[ChurnCourse], float], str], ...] = (
        (lambda course: course.in_use, ".2f"),
        (lambda course: course.waiting, ".2f"),
        (lambda course: course.waiting_pods, ".1f"),
        (lambda course: sum(course.waited.values()), ".0f"),
        (lambda course: sum(course.refused.values()), ".0f"),
    )
    for of, form in columns:
        mean = format(one.mean(of), form)
        yield f"{mean} ± {format(one.deviation(of), form)}" if many else mean
    yield _time(one.mean(lambda course: course.mean_wait_s))
    yield _time(one.mean(lambda course: course.longest_wait_s))
    hours, base = _hours(one), _hours(first)
    digits = _digits(base)
    beside = "" if one is first else f" ({hours - base:+.{digits}f})"
    yield f"{hours:.{digits}f}{beside}"


def _digits(hours: float) -> int:
    """Behind the point, so that a short history is not all zeros."""
    return 0 if hours >= 1000 else 1 if hours >= 10 else 3


def _hours(one: ChurnSummary) -> float:
    return one.mean(lambda course: course.card_hours)


def _refused(one: ChurnSummary, kind: str) -> float:
    return one.mean(lambda course: course.refused.get(kind, 0))


def _time(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def curves(found: Found) -> dict[str, Mapping[int, float]]:
    """In use over the time, a line per policy and load."""
    return {
        name if len(found) == 1 else f"{name}, {load:.0%}": one.curve()
        for load, policies in found.items()
        for name, one in policies.items()
    }


def as_json(trace: Trace, seeds: Sequence[int], found: Found) -> dict[str, Any]:
    """Everything, with every run."""
    return {
        "nodes": len(trace.nodes),
        "cards": trace.cards,
        "pods": len(trace.pods),
        "seeds": list(seeds),
        "notes": list(notes(trace)),
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
        "in_use_over_time": {str(at): round(value, 3) for at, value in course.curve.items()},
    }


def about(history: PodHistory) -> dict[str, Any]:
    """What a history is of, for `as_json`."""
    return {
        "since": history.since.isoformat(),
        "until": history.until.isoformat(),
        "pods_known_by_their_grants_alone": history.granted_only,
        "nodes_without_known_cpu": history.without_host,
    }


def sentences(history: PodHistory, found: Mapping[str, ChurnSummary]) -> Iterator[str]:
    """The answer in card-hours and pods, and what it was made without."""
    names = list(found)
    arrived = min((pod.arrives_s or 0.0 for pod in history.trace.pods), default=0.0)
    begins = history.since + timedelta(seconds=arrived)
    for name in names[1:]:
        one, first = found[name], found[names[0]]
        yield (
            f"From {begins:%Y-%m-%d %H:%M} to {history.until:%Y-%m-%d %H:%M} UTC {name} "
            f"would have had {_hours_beside(one, first, names[0])}; "
            f"{_pods_beside(one, first, lambda course: course.waited)} would have had to wait, "
            f"and {_pods_beside(one, first, lambda course: course.refused)} would never have got "
            "a place."
        )
    never = sum(not pod.ran for pod in history.trace.pods)
    if never:
        yield (
            f"{_pods(never)} never got a place in truth; where a policy has one for such a pod, it "
            "runs as long as the median of the others."
        )
    if history.granted_only:
        yield (
            f"Of {_pods(history.granted_only)} only what was granted is known: the decisions are "
            "no longer kept (HAMI_SCHEDULER_DECISION_DAYS), nor is the CPU that was asked for."
        )
    if history.without_host:
        yield (
            f"The CPU of {_counted(history.without_host, 'node')} is not known (no cluster "
            "answers): it never runs out here."
        )


def _hours_beside(one: ChurnSummary, first: ChurnSummary, name: str) -> str:
    digits = _digits(_hours(first))
    gained = round(_hours(one) - _hours(first), digits)
    if not gained:
        return f"as many card-hours in use as {name}"
    what = "more" if gained > 0 else "less"
    return f"{abs(gained):.{digits}f} card-hours {what} in use than {name}"


def _pods_beside(
    one: ChurnSummary, first: ChurnSummary, of: Callable[[ChurnCourse], Mapping[str, int]]
) -> str:
    """One course each, so whole pods."""
    more = round(
        one.mean(lambda c: sum(of(c).values())) - first.mean(lambda c: sum(of(c).values()))
    )
    return f"{_pods(abs(more))} {'more' if more > 0 else 'fewer'}" if more else "as many pods"


def _pods(count: int) -> str:
    return _counted(count, "pod")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
