"""`POST /v1/simulate`: what /filter would answer to a pod now; nothing is reserved or written.

In: a pod, and optionally Node objects (and placed pods) to ask in place of the live cluster, or
`count`: how many such pods would fit now. The engine and its answers are those of `hamictl
simulate`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_pod
from hamicommon.simulation.cluster import Cluster, read_cluster
from hamicommon.simulation.fitting import fitting
from hamicommon.simulation.planner import Planned, planned
from hamicommon.simulation.verdict import SimulatedNode
from hamicommon.vendors.registry import Vendors

from hami_scheduler.ledger.cluster_state import ClusterState

# So many nodes are answered in a few milliseconds; then others get their turn on the event loop.
_NODES_AT_ONCE = 200
SEARCH_BUDGET_S = 0.05
"""For what would let a pod fit: decisions wait for it."""
MOST_COUNTED = 100_000
"""Pods that are counted for one question."""
MOST_ON_A_NODE = 1000
"""More pods than a kubelet takes."""


class SimulationApi:
    """The use case of /v1/simulate."""

    def __init__(self, *, view: ClusterState, vendors: Vendors, defaults: Policy) -> None:
        self._view = view
        self._vendors = vendors
        self._defaults = defaults

    async def answer(self, body: object) -> Json:
        """The answer in the form of `hamictl simulate -o json`.

        Raises: InvalidRequest when the body is malformed; Unavailable when the ledger is away.
        """
        if not isinstance(body, dict):
            raise InvalidRequest('{"pod": Pod} is wanted, with "nodes": [Node...] if need be')
        pod = body.get("pod")
        if not isinstance(pod, dict):
            raise InvalidRequest("pod: a Pod object is wanted")
        try:
            if body.get("count") is not None:
                return await self._fitting(pod, body["count"])
            if body.get("nodes") is None:
                check_pod(pod)
                return (await self._live(pod)).as_json()
            nodes, pods = _objects(body, "nodes"), _objects(body, "pods")
            cluster = read_cluster(nodes, pods, self._vendors, asking=[pod])
            check_pod(pod)
            answer = self._ask(pod, cluster).as_json()
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as exc:
            # Annotations may hold any JSON where a device plugin would have written a known form.
            raise InvalidRequest(f"an object is malformed ({type(exc).__name__}: {exc})") from exc
        return answer | {"problems": list(cluster.problems)}

    async def _live(self, pod: Json) -> Planned:
        """Asks all nodes of the ledger, some at a time: the winner of winners is chosen."""
        if not self._view.loaded:
            await self._view.refresh()
        view = self._view.cluster
        names = sorted(view.nodes)
        answers: dict[NodeName, SimulatedNode] = {}
        winners: list[NodeName] = []
        for start in range(0, max(len(names), 1), _NODES_AT_ONCE):
            part = names[start : start + _NODES_AT_ONCE]
            verdict = self._ask(pod, Cluster(view=view, nodes=tuple(part))).verdict
            answers |= verdict.nodes
            if verdict.chosen is not None:
                winners.append(verdict.chosen)
            await asyncio.sleep(0)  # requests have their turn
        final = self._ask(pod, Cluster(view=view, nodes=tuple(winners)))
        return replace(final, verdict=replace(final.verdict, nodes=answers))

    async def _fitting(self, pod: Json, most: object) -> Json:
        """How many more pods of the kind fit now, node by node, until `most` are found."""
        if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MOST_COUNTED:
            raise InvalidRequest(f"count: a number from 1 to {MOST_COUNTED} is wanted")
        if not self._view.loaded:
            await self._view.refresh()
        nodes: dict[NodeName, int] = {}
        total = 0
        found = fitting(
            pod,
            self._view.cluster,
            self._vendors,
            now=datetime.now(UTC),
            most=min(most, MOST_ON_A_NODE),
            defaults=self._defaults,
        )
        for each in found:
            total += each.pods
            if each.pods:
                nodes[each.node] = each.pods
            if total >= most:
                break
            await asyncio.sleep(0)  # requests have their turn
        return {"count": min(total, most), "more": total >= most, "nodes": nodes}

    def _ask(self, pod: Json, cluster: Cluster) -> Planned:
        return planned(
            pod,
            cluster,
            self._vendors,
            now=datetime.now(UTC),
            defaults=self._defaults,
            search_budget_s=SEARCH_BUDGET_S,
        )


def _objects(body: dict[str, Any], key: str) -> Sequence[Json]:
    items = body.get(key) or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidRequest(f"{key}: a list of Kubernetes objects is wanted")
    return items
