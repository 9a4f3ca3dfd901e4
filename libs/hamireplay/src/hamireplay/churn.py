"""Replay pods that arrive, wait, run and end: how long they wait under a policy.

A pod that finds no room waits. When a pod ends, those that wait are asked in the order in which
they came, whether its node takes them: no other has more room than before, so this finds all that
fit anywhere. A pod runs as long as it did, from when it is placed; it gives up when its patience
ends.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from hamireplay.trace import KINDS, HeldAmounts, ReplayCluster, TracePod, demand_milli

CURVE_STEPS = 100
"""Number of steps of the window for which use is recorded."""


class Stay(NamedTuple):
    """Arrival of one pod, with its running time."""

    pod: TracePod
    arrives_s: float
    runs_s: float
    """Running time; infinite: it does not end."""
    patience_s: float = float("inf")


class Window(NamedTuple):
    """Period of the run that is measured, in seconds."""

    begins_s: float
    ends_s: float

    @property
    def length_s(self) -> float:
        """Return the length of the period in seconds."""
        return self.ends_s - self.begins_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ChurnCourse:
    """Result of one order of arrivals, for pods that arrived in the window."""

    in_use: float
    """Percent of the cards in use, mean over time."""
    waiting: float
    """Requests of waiting pods in percent of the cards, mean over time."""
    waiting_pods: float
    """Number of waiting pods, mean over time."""
    card_hours: float
    """Card-hours that pods held in the window."""
    arrived: int
    waited: Mapping[str, int] = field(default_factory=dict)
    """Number of pods by kind that could not start immediately."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Number of pods by kind that never got a place: they gave up, or wait at the end."""
    mean_wait_s: float = 0.0
    """Mean wait of all pods, 0 for immediate starts; pods that still wait count until the end."""
    longest_wait_s: float = 0.0
    curve: Mapping[int, float] = field(default_factory=dict)
    """Percent of the cards in use, by percent of the window."""


def run_churn(
    stays: Sequence[Stay],
    cluster: ReplayCluster,
    window: Window,
    *,
    capacity_milli: int,
    card_memory_mib: int = 0,
    on_pod: Callable[[], object] = lambda: None,
) -> ChurnCourse:
    """Run the pods' arrivals and ends; `stays` are in the order of arrival."""
    run = _Run(cluster, window, card_memory_mib)
    for number, stay in enumerate(stays):
        run.until(stay.arrives_s)
        run.arrive(number, stay)
        on_pod()
    run.until(window.ends_s)
    return run.course(capacity_milli)


class _Clock:
    """Integrals over time, from which means over the window and its steps are computed."""

    def __init__(self, window: Window) -> None:
        self._bounds = np.linspace(window.begins_s, window.ends_s, CURVE_STEPS + 1)
        self._now = window.begins_s
        self.used = self.asked = self.pods = 0
        """Now: milli in use, milli that waiting pods ask for, waiting pods."""
        self.sums = np.zeros((3, CURVE_STEPS))
        """These three, times the seconds that they lasted, by step."""

    def advance(self, at: float) -> None:
        """Add the amounts up to this time, during which nothing changed."""
        if at <= self._now:
            return
        durations_s = np.minimum(self._bounds[1:], at) - np.maximum(self._bounds[:-1], self._now)
        self.sums += np.outer((self.used, self.asked, self.pods), np.maximum(durations_s, 0.0))
        self._now = at


@dataclass(slots=True)
class _Waiting:
    """Pod that waits."""

    number: int
    stay: Stay
    counted: bool
    """Whether the pod arrived in the window."""
    left: bool = False
    """Whether the pod was placed, or gave up."""


def _asks(pod: TracePod) -> Hashable:
    return pod.shape, pod.memory_mib


class _Run:
    """State of one run, at the time of the last event."""

    def __init__(self, cluster: ReplayCluster, window: Window, card_memory_mib: int) -> None:
        self._cluster, self._window, self._card_memory = cluster, window, card_memory_mib
        self._clock = _Clock(window)
        self._events: list[tuple[float, int, _Waiting | tuple[TracePod, HeldAmounts]]] = []
        self._serial = 0
        self._line: dict[Hashable, deque[_Waiting]] = {}
        """Waiting pods by shape: where one does not fit, no other does. The first still waits."""
        self._arrived = 0
        self._waits = self._longest = 0.0
        self._waited = dict.fromkeys(KINDS, 0)
        self._refused = dict.fromkeys(KINDS, 0)

    def until(self, at: float) -> None:
        """Process all events up to and including this time."""
        while self._events and self._events[0][0] <= at:
            when, _, what = heapq.heappop(self._events)
            self._clock.advance(when)
            if isinstance(what, _Waiting):
                self._give_up(what, when)
            else:
                self._end(*what, when)
        self._clock.advance(at)

    def arrive(self, number: int, stay: Stay) -> None:
        """Place an arriving pod, or let it wait."""
        counted = self._window.begins_s <= stay.arrives_s
        self._arrived += counted
        one = _Waiting(number, stay, counted)
        # Behind one of its kind that waits there is nothing to find.
        if _asks(stay.pod) not in self._line:
            held = self._cluster.take(stay.pod)
            if held is not None:
                self._start(one, held, stay.arrives_s)
                return
        self._line.setdefault(_asks(stay.pod), deque()).append(one)
        self._clock.pods += 1
        self._clock.asked += self._demand(stay.pod)
        self._waited[stay.pod.kind] += counted
        if stay.patience_s < float("inf"):
            self._push(stay.arrives_s + stay.patience_s, one)

    def _push(self, at: float, what: _Waiting | tuple[TracePod, HeldAmounts]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (at, self._serial, what))

    def _start(self, one: _Waiting, held: HeldAmounts, at: float) -> None:
        self._clock.used += self._demand(one.stay.pod)
        if one.stay.runs_s < float("inf"):
            self._push(at + one.stay.runs_s, (one.stay.pod, held))

    def _end(self, pod: TracePod, held: HeldAmounts, at: float) -> None:
        self._clock.used -= self._demand(pod)
        self._cluster.give_back(pod, held)
        heads = [(line[0].number, shape) for shape, line in self._line.items()]
        heapq.heapify(heads)
        while heads:
            _, shape = heapq.heappop(heads)
            one = self._line[shape][0]
            placed = self._cluster.take(one.stay.pod, held.row)
            if placed is None:
                continue
            self._leaves_line(one, at)
            self._start(one, placed, at)
            if shape in self._line:
                heapq.heappush(heads, (self._line[shape][0].number, shape))

    def _give_up(self, one: _Waiting, at: float) -> None:
        if not one.left:
            self._leaves_line(one, at)
            self._refused[one.stay.pod.kind] += one.counted

    def _leaves_line(self, one: _Waiting, at: float) -> None:
        self._clock.pods -= 1
        self._clock.asked -= self._demand(one.stay.pod)
        self._add_wait(one, at)
        one.left = True
        line = self._line[_asks(one.stay.pod)]
        while line and line[0].left:
            line.popleft()
        if not line:
            del self._line[_asks(one.stay.pod)]

    def _add_wait(self, one: _Waiting, at: float) -> None:
        if one.counted:
            wait = max(at - one.stay.arrives_s, 0.0)
            self._waits += wait
            self._longest = max(self._longest, wait)

    def _demand(self, pod: TracePod) -> int:
        return demand_milli(pod, self._card_memory)

    def course(self, capacity_milli: int) -> ChurnCourse:
        """Return the results of the run.

        Pods that still wait have waited until the window's end.
        """
        for line in self._line.values():
            for one in line:
                if not one.left:
                    self._add_wait(one, self._window.ends_s)
                    self._refused[one.stay.pod.kind] += one.counted
        sums, length = self._clock.sums, self._window.length_s
        used, asked, pods = (sums.sum(axis=1) / length).tolist()
        curve = 100 * sums[0] * CURVE_STEPS / length / capacity_milli
        return ChurnCourse(
            in_use=100 * used / capacity_milli,
            waiting=100 * asked / capacity_milli,
            waiting_pods=pods,
            card_hours=used * length / 1000 / 3600,
            arrived=self._arrived,
            waited={kind: count for kind, count in self._waited.items() if count},
            refused={kind: count for kind, count in self._refused.items() if count},
            mean_wait_s=self._waits / max(self._arrived, 1),
            longest_wait_s=self._longest,
            curve=dict(enumerate(curve.tolist(), start=1)),
        )
