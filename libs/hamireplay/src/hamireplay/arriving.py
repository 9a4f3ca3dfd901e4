"""Replay pods that arrive one after the other and never end: how much of the cards gets used.

The protocol of the published runs: nothing waits, nothing is retried, nothing ends; a refused pod
counts as arrived. A point of the curve at k % is the mean over the arrivals after which the demand
that has arrived, placed or not, rounds to k % of the cards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Generic, Protocol, TypeVar

from hamireplay.trace import KINDS, ReplayCluster, TracePod, demand_milli


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Result of one order of arrivals."""

    curve: Mapping[int, float]
    """Percent of the cards in use, by percent of the cards that was requested."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Number of refused pods by kind (`trace.KINDS`)."""
    arrived: int = 0
    placed: int = 0
    stranded: float | None = None
    """Percent of the cards that are idle but useless at the end; None: unknown."""

    def at(self, percent: int) -> float:
        """Return the percent in use when this much was requested, or at the nearest known load."""
        nearest = min(self.curve, key=lambda load: (abs(load - percent), load))
        return self.curve[nearest]


def run(
    order: Sequence[TracePod],
    cluster: ReplayCluster,
    *,
    capacity_milli: int,
    card_memory_mib: int = 0,
    on_pod: Callable[[], object] = lambda: None,
) -> Course:
    """Let the pods arrive in order; `on_pod` is called after each (a progress bar)."""
    arrived = used = placed = 0
    sums: dict[int, list[float]] = {}
    refused = dict.fromkeys(KINDS, 0)
    for pod in order:
        demand = demand_milli(pod, card_memory_mib)
        arrived += demand
        if cluster.take(pod) is not None:
            used += demand
            placed += 1
        else:
            refused[pod.kind] += 1
        load = int(100 * arrived / capacity_milli + 0.5)
        sums.setdefault(load, []).append(100 * used / capacity_milli)
        on_pod()
    stranded = cluster.stranded_milli()
    return Course(
        curve={load: fmean(values) for load, values in sums.items()},
        refused={kind: count for kind, count in refused.items() if count},
        arrived=len(order),
        placed=placed,
        stranded=None if stranded is None else 100 * stranded / capacity_milli,
    )


class HasCurve(Protocol):
    """Result of a run that has a curve over time or load."""

    @property
    def curve(self) -> Mapping[int, float]:
        """Percent of the cards in use during the run."""

    @property
    def refused(self) -> Mapping[str, int]:
        """Number of pods by kind that never got a place."""


C = TypeVar("C", bound=HasCurve)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Generic[C]):
    """Results of one policy over several seeds."""

    courses: Sequence[C]

    def mean(self, of: Callable[[C], float]) -> float:
        """Return the mean of one number over the seeds."""
        return fmean(of(course) for course in self.courses)

    def deviation(self, of: Callable[[C], float]) -> float:
        """Return the standard deviation of one number over the seeds (population, as published)."""
        return pstdev(of(course) for course in self.courses)

    def mean_refused(self, kind: str) -> float:
        """Return the mean number of pods of the kind that never got a place."""
        return self.mean(lambda course: course.refused.get(kind, 0))

    def curve(self) -> Mapping[int, float]:
        """Return the mean curve, at the steps that all seeds reached."""
        steps = set.intersection(*(set(course.curve) for course in self.courses))
        return {at: fmean(course.curve[at] for course in self.courses) for at in sorted(steps)}
