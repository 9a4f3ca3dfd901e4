"""Pods arrive one after the other and stay: how much of the cards ends up in use.

The protocol of the published runs: nothing waits, nothing is retried, nothing ends; a refused pod
counts as arrived. A point of the curve at k % is the mean over the arrivals after which the demand
that has arrived, placed or not, rounds to k % of the cards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hamicommon.simulation.replay.trace import KINDS, TracePod, demand_milli

Floats = npt.NDArray[np.float64]


class PodPlacer(Protocol):
    """A cluster under one policy."""

    def place(self, pod: TracePod) -> bool:
        """Puts the pod on a node; False when it fits nowhere."""

    def stranded_milli(self) -> float | None:
        """Idle cards that no usual pod could use, in milli; None: the policy does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What became of one order of arrivals."""

    allocated: Mapping[int, float]
    """Percent of the cards in use, by percent of the cards that was asked for."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """Refused pods, by kind (`trace.KINDS`)."""
    arrived: int = 0
    placed: int = 0
    stranded: float | None = None
    """Percent of the cards that are idle and of no use at the end; None: not known."""

    def at(self, percent: int) -> float:
        """Percent in use when so much had arrived; of the nearest load that the run came to."""
        nearest = min(self.allocated, key=lambda load: (abs(load - percent), load))
        return self.allocated[nearest]


def run(
    order: Sequence[TracePod],
    placer: PodPlacer,
    *,
    capacity_milli: int,
    card_memory_mib: int = 0,
    on_pod: Callable[[], object] = lambda: None,
) -> Course:
    """Lets the pods arrive; `on_pod` is called after each (a progress bar)."""
    arrived = used = placed = 0
    sums: dict[int, list[float]] = {}
    failed = dict.fromkeys(KINDS, 0)
    for pod in order:
        demand = demand_milli(pod, card_memory_mib)
        arrived += demand
        if placer.place(pod):
            used += demand
            placed += 1
        else:
            failed[pod.kind] += 1
        load = int(100 * arrived / capacity_milli + 0.5)
        sums.setdefault(load, []).append(100 * used / capacity_milli)
        on_pod()
    stranded = placer.stranded_milli()
    return Course(
        allocated={load: fmean(values) for load, values in sums.items()},
        failed={kind: count for kind, count in failed.items() if count},
        arrived=len(order),
        placed=placed,
        stranded=None if stranded is None else 100 * stranded / capacity_milli,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The same policy over several seeds."""

    courses: Sequence[Course]

    def mean_at(self, percent: int) -> float:
        """Mean percent in use."""
        return fmean(course.at(percent) for course in self.courses)

    def deviation_at(self, percent: int) -> float:
        """Its standard deviation over the seeds (of the population, as published)."""
        return pstdev(course.at(percent) for course in self.courses)

    def failed(self, kind: str) -> float:
        """Mean number of refused pods of the kind."""
        return fmean(course.failed.get(kind, 0) for course in self.courses)

    def curve(self) -> Mapping[int, float]:
        """Mean percent in use by load, at the loads that every seed came to."""
        loads = set.intersection(*(set(course.allocated) for course in self.courses))
        return {load: fmean(c.allocated[load] for c in self.courses) for load in sorted(loads)}
