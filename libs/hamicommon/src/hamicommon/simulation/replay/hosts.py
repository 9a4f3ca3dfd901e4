"""Pods without cards, where kube-scheduler puts them.

A policy of ours does not place them in a cluster: kube-scheduler's plugin NodeResourcesFit scores
the hosts by CPU and memory. Where it spreads them (`LeastAllocated`, its default) they take the CPU
that cards need, on every node a part of it. Where it asks our scheduler for scores (`EXTENDER`), it
adds them to those of its own that depend on what is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.host_scores import EXTENDER_WEIGHT
from hamicommon.simulation.replay.churn import Churner
from hamicommon.simulation.replay.course import PodPlacer
from hamicommon.simulation.replay.trace import Held, TraceNode, TracePod

_OF_A_LEVEL = 10
"""kube-scheduler makes 0..10 of an extender 0..100, as its plugins' scores are."""


class HostChoice(StrEnum):
    """Who places pods without cards."""

    POLICY = "policy"
    """The policy that places the others, as in published comparisons."""
    LEAST_ALLOCATED = "least-allocated"
    MOST_ALLOCATED = "most-allocated"
    EXTENDER = "extender"
    """kube-scheduler, by its default scores and ours (`placement/host_scores.py`)."""


class ReplayCluster(PodPlacer, Churner, Protocol):
    """A cluster under one policy: pods come to it, and go."""


class ScoredCluster(ReplayCluster, Protocol):
    """One whose policy can also score hosts for pods without cards."""

    def host_levels(self, cpu_milli: int, rows: Int) -> Int:
        """(rows,): 0..10, as kube-scheduler is answered."""


class StockHosts:
    """A cluster whose pods without cards are placed by kube-scheduler; of equals the first."""

    def __init__(
        self, cluster: ReplayCluster, nodes: Sequence[TraceNode], choice: HostChoice
    ) -> None:
        """`nodes` are the cluster's; `choice` is one of kube-scheduler's own."""
        self._cluster = cluster
        ordered = sorted(nodes, key=lambda node: node.name)
        self._capacity = np.array([[node.cpu_milli, node.memory_mib] for node in ordered])
        self._free = self._capacity.copy()
        self._sign = -1 if choice is HostChoice.MOST_ALLOCATED else 1

    def place(self, pod: TracePod) -> bool:
        """Puts the pod on a node; False when it fits nowhere."""
        return self.take(pod) is not None

    def take(self, pod: TracePod, row: int | None = None) -> Held | None:
        """As the cluster does, but without cards on the host that kube-scheduler would take."""
        if not pod.cards and row is None:
            row = self._best(pod)
            if row is None:
                return None
        held = self._cluster.take(pod, row)
        if held is not None:
            self._free[held.row] -= _asked(pod)
        return held

    def give_back(self, pod: TracePod, held: Held) -> None:
        """The pod has ended."""
        self._cluster.give_back(pod, held)
        self._free[held.row] += _asked(pod)

    def stranded_milli(self) -> float | None:
        """As the cluster has it."""
        return self._cluster.stranded_milli()

    def _best(self, pod: TracePod) -> int | None:
        rows = np.flatnonzero((self._free >= _asked(pod)).all(axis=1))
        return int(rows[self._scores(pod, rows).argmax()]) if len(rows) else None

    def _scores(self, pod: TracePod, rows: Int) -> Int:
        """(rows,): of hosts with room for the pod."""
        return self._sign * self._free_percent(pod, rows)

    def _free_percent(self, pod: TracePod, rows: Int) -> Int:
        """NodeResourcesFit: the mean of what is free of CPU and of memory then."""
        percent = 100 * (self._free[rows] - _asked(pod)) // np.maximum(self._capacity[rows], 1)
        found: Int = percent.sum(axis=1) // 2
        return found


class ScoredHosts(StockHosts):
    """kube-scheduler asks our scheduler for scores, and adds them to its own."""

    def __init__(self, cluster: ScoredCluster, nodes: Sequence[TraceNode]) -> None:
        super().__init__(cluster, nodes, HostChoice.EXTENDER)
        self._scored = cluster

    def _scores(self, pod: TracePod, rows: Int) -> Int:
        ours = self._scored.host_levels(pod.cpu_milli, rows) * _OF_A_LEVEL * EXTENDER_WEIGHT
        return self._free_percent(pod, rows) + self._balance(pod, rows) + ours

    def _balance(self, pod: TracePod, rows: Int) -> Int:
        """NodeResourcesBalancedAllocation (1.36): 75, more where the pod evens CPU and memory."""
        capacity, free = self._capacity[rows], self._free[rows]
        with_pod = _evenness(capacity - free + _asked(pod), capacity)
        return 50 + (50 + with_pod - _evenness(capacity - free, capacity)) // 2


def _evenness(used: Int, capacity: Int) -> Int:
    parts = np.minimum(used / np.maximum(capacity, 1), 1.0)
    deviation = np.abs(parts[:, 0] - parts[:, 1]) / 2
    found: Int = ((1 - deviation) * 100).astype(np.int64)
    return found


def _asked(pod: TracePod) -> npt.NDArray[np.int64]:
    return np.array([pod.cpu_milli, pod.memory_mib])
