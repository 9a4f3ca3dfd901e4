"""Pods without cards, where kube-scheduler puts them.

A policy of ours is not asked about them in a cluster: kube-scheduler's plugin NodeResourcesFit
scores the hosts by CPU and memory. Where it spreads them (`LeastAllocated`, its default) they take
the CPU that cards need, on every node a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hamicommon.simulation.replay.churn import Churner
from hamicommon.simulation.replay.course import Placer
from hamicommon.simulation.replay.trace import Held, TraceNode, TracePod


class HostChoice(StrEnum):
    """Who places pods without cards."""

    POLICY = "policy"
    """The policy that places the others, as in published comparisons."""
    LEAST_ALLOCATED = "least-allocated"
    MOST_ALLOCATED = "most-allocated"


class ReplayCluster(Placer, Churner, Protocol):
    """A cluster under one policy: pods come to it, and go."""


class StockHosts:
    """A cluster whose pods without cards are placed by kube-scheduler; of equals the first."""

    def __init__(
        self, cluster: ReplayCluster, nodes: Sequence[TraceNode], choice: HostChoice
    ) -> None:
        """`nodes` are the cluster's; `choice` is not `POLICY`."""
        self._cluster = cluster
        ordered = sorted(nodes, key=lambda node: node.name)
        self._capacity = np.array([[node.cpu_milli, node.memory_mib] for node in ordered])
        self._free = self._capacity.copy()
        self._sign = 1 if choice is HostChoice.LEAST_ALLOCATED else -1

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
        """By NodeResourcesFit: the mean of what is free of CPU and of memory then, in percent."""
        left = self._free - _asked(pod)
        fits = (left >= 0).all(axis=1)
        if not fits.any():
            return None
        percent = 100 * left // np.maximum(self._capacity, 1)
        score = self._sign * (percent.sum(axis=1) // 2)
        return int(np.where(fits, score, np.iinfo(np.int64).min).argmax())


def _asked(pod: TracePod) -> npt.NDArray[np.int64]:
    return np.array([pod.cpu_milli, pod.memory_mib])
