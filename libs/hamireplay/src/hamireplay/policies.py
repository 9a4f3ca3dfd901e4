"""Policies of a replay by their names, and placement of pods without cards.

In a cluster no policy of ours places pods without cards: kube-scheduler's plugin NodeResourcesFit
scores the hosts by CPU and memory. If it spreads such pods (`LeastAllocated`, its default), they
take CPU that cards need, on every node a part of it. If kube-scheduler asks our scheduler for
scores (`EXTENDER`), it adds them to its own scores that depend on free amounts.
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
from hamireplay.trace import HeldAmounts, ReplayCluster, Trace, TraceNode, TracePod

ENGINE = {
    "binpack": Policy(node="binpack", gpu=("spread",)),
    "spread": Policy(node="spread", gpu=("spread",)),
    "binpack-cards": Policy(node="binpack", gpu=("binpack",)),
    FRAGMENTATION: Policy(node=FRAGMENTATION, gpu=(FRAGMENTATION,)),
}
"""Policies that pods may name; `binpack` and `spread` choose cards by HAMi's default, `spread`."""

ORACLE = "fragmentation-oracle"
"""Policy `fragmentation` with the trace's mix known from the start and never learned."""
CARDS_ONLY = "fragmentation-cards"
"""Policy `fragmentation` without the hosts' CPU in the score."""

PUBLISHED: dict[str, type[BestFit] | type[Fgd]] = {"bestfit": BestFit, "fgd": Fgd}

NAMES = (*ENGINE, ORACLE, CARDS_ONLY, *PUBLISHED)

_SCORES_OF_A_LEVEL = 10
"""Factor by which kube-scheduler multiplies an extender's scores 0..10."""


class HostChoice(StrEnum):
    """Way in which pods without cards are placed."""

    POLICY = "policy"
    """The policy that places other pods decides, as in published comparisons."""
    MIN_ALLOCATED = "least-allocated"
    MAX_ALLOCATED = "most-allocated"
    EXTENDER = "extender"
    """kube-scheduler's default scores and ours decide (`placement/host_scores.py`)."""


def parse_policies(names: str) -> list[str]:
    """Parse a comma list of policies, each once.

    Raises: InvalidRequest naming the unknown one and the existing ones.
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
    """Check that the published policies can process the trace, before the first run.

    Raises: InvalidRequest if one of them can't count the requests of the trace's pods, or lacks
    requested scores for pods without cards.
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
    """Return the cluster under a policy of the engine."""
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
    """Return the cluster under any policy; `hosts` places pods without cards.

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
    """Cluster whose pods without cards kube-scheduler places; of equal hosts, on the first."""

    def __init__(
        self,
        cluster: ReplayCluster,
        nodes: Sequence[TraceNode],
        choice: HostChoice,
        scores: EngineCluster | None = None,
    ) -> None:
        """Wrap the cluster; `scores`: whose host levels count as those of the extender."""
        self._cluster = cluster
        self._scored = scores
        ordered = sorted(nodes, key=lambda node: node.name)
        self._capacity = np.array([[node.cpu_milli, node.memory_mib] for node in ordered])
        self._free = self._capacity.copy()
        self._sign = -1 if choice is HostChoice.MAX_ALLOCATED else 1

    def take(self, pod: TracePod, row: int | None = None) -> HeldAmounts | None:
        """Place the pod as the cluster does, or without cards on kube-scheduler's host."""
        if not pod.cards and row is None:
            rows = np.flatnonzero((self._free >= _host_request(pod)).all(axis=1))
            if not len(rows):
                return None
            row = int(rows[self._scores(pod, rows).argmax()])
        held = self._cluster.take(pod, row)
        if held is not None:
            self._free[held.row] -= _host_request(pod)
        return held

    def give_back(self, pod: TracePod, held: HeldAmounts) -> None:
        """Free the cards and the host CPU of a pod that has ended."""
        self._cluster.give_back(pod, held)
        self._free[held.row] += _host_request(pod)

    def stranded_milli(self) -> float | None:
        """Return idle cards that no usual pod could use, as the cluster computes it."""
        return self._cluster.stranded_milli()

    def _scores(self, pod: TracePod, rows: Int) -> Int:
        """Score hosts with room for the pod.

        NodeResourcesFit: the mean of the percentages of CPU and memory that remain free. With our
        scores also NodeResourcesBalancedAllocation (1.36): 75, and more if the pod evens CPU and
        memory.
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
