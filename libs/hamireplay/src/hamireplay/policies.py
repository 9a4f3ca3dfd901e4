"""Policies that a replay knows, by their names on the command line, and who places other pods.

No policy of ours places pods without cards in a cluster: kube-scheduler's plugin NodeResourcesFit
scores the hosts by CPU and memory. Where it spreads them (`LeastAllocated`, its default) they take
the CPU that cards need, on every node a part of it. Where it asks our scheduler for scores
(`EXTENDER`), it adds them to those of its own that depend on what is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from hamicommon.clipping import clip
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.placement.cluster.cards import Int
from hamicommon.placement.host_scores import EXTENDER_WEIGHT
from hamicommon.placement.node_policies import FRAGMENTATION

from hamireplay.engine import EngineCluster, oracle
from hamireplay.published import BestFit, Fgd
from hamireplay.trace import Held, ReplayCluster, Trace, TraceNode, TracePod

ENGINE = {
    "binpack": Policy(node="binpack", gpu=("spread",)),
    "spread": Policy(node="spread", gpu=("spread",)),
    "binpack-cards": Policy(node="binpack", gpu=("binpack",)),
    FRAGMENTATION: Policy(node=FRAGMENTATION, gpu=(FRAGMENTATION,)),
}
"""Policies that pods can name: `binpack` and `spread` with HAMi's default for cards, `spread`."""

ORACLE = "fragmentation-oracle"
"""`fragmentation` with the trace's mix known beforehand and never learned."""
CARDS_ONLY = "fragmentation-cards"
"""`fragmentation` without the hosts' CPU in the score."""

PUBLISHED: dict[str, type[BestFit] | type[Fgd]] = {"bestfit": BestFit, "fgd": Fgd}

NAMES = (*ENGINE, ORACLE, CARDS_ONLY, *PUBLISHED)

_SCORES_OF_A_LEVEL = 10
"""kube-scheduler makes 0..10 of an extender 0..100, as its plugins' scores are."""


class HostChoice(StrEnum):
    """Placement of pods without cards."""

    POLICY = "policy"
    """By the policy that places the others, as in published comparisons."""
    MIN_ALLOCATED = "least-allocated"
    MAX_ALLOCATED = "most-allocated"
    EXTENDER = "extender"
    """By kube-scheduler's default scores and ours (`placement/host_scores.py`)."""


def checked(names: str) -> list[str]:
    """Read a comma list of policies, each once.

    Raises: InvalidRequest naming the one that is unknown, and those there are.
    """
    found = [name.strip() for name in names.split(",") if name.strip()]
    for name in found:
        if name not in NAMES:
            raise InvalidRequest(
                f"policy {clip(name)!r} is unknown: expected {', '.join(NAMES)}, or a comma list"
            )
    if not found:
        raise InvalidRequest(f"no policy is named: expected a comma list of {', '.join(NAMES)}")
    return list(dict.fromkeys(found))


def check_published(names: Iterable[str], trace: Trace, hosts: HostChoice) -> None:
    """Find before the first of many runs that a published policy can't answer.

    Raises: InvalidRequest when one of them can't count what the trace's pods ask for, or has no
    scores for pods without cards where those are wanted.
    """
    for name in names:
        if name in PUBLISHED:
            PUBLISHED[name].check(trace)
            if hosts is HostChoice.EXTENDER:
                raise InvalidRequest(
                    f"policy {name} has no scores for pods without cards: with extender, use "
                    f"policies of the engine: {', '.join((*ENGINE, ORACLE, CARDS_ONLY))}"
                )


def engine_cluster(name: str, trace: Trace, nodes: Sequence[TraceNode]) -> EngineCluster:
    """Make the cluster under a policy of the engine."""
    if name == ORACLE:
        return EngineCluster(trace, nodes, ENGINE[FRAGMENTATION], mix=oracle(trace))
    if name == CARDS_ONLY:
        return EngineCluster(trace, nodes, ENGINE[FRAGMENTATION], host_in_score=False)
    return EngineCluster(trace, nodes, ENGINE[name])


def cluster_under(
    name: str,
    trace: Trace,
    nodes: Sequence[TraceNode],
    hosts: HostChoice = HostChoice.POLICY,
) -> ReplayCluster:
    """Make the cluster under any of the policies; `hosts` places pods without cards.

    Raises: InvalidRequest as `check_published`.
    """
    check_published([name], trace, hosts)
    if name in PUBLISHED:
        cluster: ReplayCluster = PUBLISHED[name](trace, nodes)
        return cluster if hosts is HostChoice.POLICY else StockHosts(cluster, nodes, hosts)
    ours = engine_cluster(name, trace, nodes)
    if hosts is HostChoice.POLICY:
        return ours
    return StockHosts(ours, nodes, hosts, ours if hosts is HostChoice.EXTENDER else None)


class StockHosts:
    """A cluster whose pods without cards are placed by kube-scheduler; of equals the first."""

    def __init__(
        self,
        cluster: ReplayCluster,
        nodes: Sequence[TraceNode],
        choice: HostChoice,
        scores: EngineCluster | None = None,
    ) -> None:
        """Wrap the cluster of these nodes; `scores`: whose levels kube-scheduler asks for."""
        self._cluster = cluster
        self._scored = scores
        ordered = sorted(nodes, key=lambda node: node.name)
        self._capacity = np.array([[node.cpu_milli, node.memory_mib] for node in ordered])
        self._free = self._capacity.copy()
        self._sign = -1 if choice is HostChoice.MAX_ALLOCATED else 1

    def take(self, pod: TracePod, row: int | None = None) -> Held | None:
        """Put the pod as the cluster does; without cards on the host that kube-scheduler takes."""
        if not pod.cards and row is None:
            rows = np.flatnonzero((self._free >= _host_request(pod)).all(axis=1))
            if not len(rows):
                return None
            row = int(rows[self._scores(pod, rows).argmax()])
        held = self._cluster.take(pod, row)
        if held is not None:
            self._free[held.row] -= _host_request(pod)
        return held

    def give_back(self, pod: TracePod, held: Held) -> None:
        """Free the slices and the host of a pod that has ended."""
        self._cluster.give_back(pod, held)
        self._free[held.row] += _host_request(pod)

    def stranded_milli(self) -> float | None:
        """Idle cards that no usual pod could use, as the cluster has it."""
        return self._cluster.stranded_milli()

    def _scores(self, pod: TracePod, rows: Int) -> Int:
        """Score hosts with room for the pod.

        NodeResourcesFit: the mean of what is free of CPU and of memory then. With our scores
        also NodeResourcesBalancedAllocation (1.36): 75, more where the pod evens CPU and memory.
        """
        capacity, free = self._capacity[rows], self._free[rows]
        percent = 100 * (free - _host_request(pod)) // np.maximum(capacity, 1)
        found: Int = self._sign * (percent.sum(axis=1) // 2)
        if self._scored is None:
            return found
        with_pod = _evenness(capacity - free + _host_request(pod), capacity)
        balance = 50 + (50 + with_pod - _evenness(capacity - free, capacity)) // 2
        levels = self._scored.host_levels(pod.cpu_milli, rows)
        return found + balance + levels * _SCORES_OF_A_LEVEL * EXTENDER_WEIGHT


def _evenness(used: Int, capacity: Int) -> Int:
    parts = np.minimum(used / np.maximum(capacity, 1), 1.0)
    deviation = np.abs(parts[:, 0] - parts[:, 1]) / 2
    found: Int = ((1 - deviation) * 100).astype(np.int64)
    return found


def _host_request(pod: TracePod) -> npt.NDArray[np.int64]:
    return np.array([pod.cpu_milli, pod.memory_mib])
