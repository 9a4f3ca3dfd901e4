"""`POST /v1/simulate`: what /filter would answer to a pod now; nothing is reserved or written.

In: a pod, and optionally Node objects (and placed pods) to ask in place of the live cluster, or
`count`: how many such pods would fit now. The engine and its answers are those of `hamictl
simulate`. All of it is computed beside the event loop (`bootstrap/simulating.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.k8s.validation import check_pod
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.simulation.cluster import Cluster, read_cluster
from hamicommon.simulation.fitting import fitting
from hamicommon.simulation.planner import Planned, planned
from hamicommon.vendors.registry import Vendors

MAX_COUNT = 100_000
"""Maximum number of pods that are counted for one question."""
MAX_ON_A_NODE = 1000
"""Maximum number of pods on one node, more than a kubelet accepts."""


@dataclass(eq=False, kw_only=True)
class ClusterSimulator:
    """Use case of /v1/simulate.

    `live`: reads the ledger. Raises: Unavailable.
    """

    live: Callable[[], ClusterView]
    vendors: Vendors
    defaults: Policy
    closed: Mapping[str, frozenset[NodeName]] = field(default_factory=dict)
    """Nodes that take no pod now, by reason."""

    def answer(self, text: bytes) -> bytes:
        """Return the answer in the form of `hamictl simulate -o json`.

        Raises: InvalidRequest when the body is malformed; Unavailable when the ledger is
        unavailable.
        """
        try:
            body = orjson.loads(text)
        except orjson.JSONDecodeError as exc:
            raise InvalidRequest(f"the body is not JSON: {exc}") from exc
        try:
            return orjson.dumps(self._answer(body))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as exc:
            # Annotations may hold any JSON where a device plugin would have written a known form.
            raise InvalidRequest(f"an object is malformed ({type(exc).__name__}: {exc})") from exc

    def _answer(self, body: object) -> Json:
        if not isinstance(body, dict):
            raise InvalidRequest('expected {"pod": Pod}, with "nodes": [Node...] if needed')
        pod = body.get("pod")
        if not isinstance(pod, dict):
            raise InvalidRequest("pod: expected a Pod object")
        if body.get("count") is not None:
            return self._fitting(pod, body["count"])
        if body.get("nodes") is None:
            check_pod(pod)
            view = self.live()
            return self._ask(pod, Cluster(view=view, nodes=tuple(sorted(view.nodes)))).as_json()
        nodes, pods = _objects(body, "nodes"), _objects(body, "pods")
        cluster = read_cluster(nodes, pods, self.vendors, asking=[pod])
        check_pod(pod)
        return self._ask(pod, cluster).as_json() | {"problems": list(cluster.problems)}

    def _fitting(self, pod: Json, most: object) -> Json:
        """Return how many more such pods fit now per node, up to `most`.

        Closed nodes are not filled; `closed` has their number, by the reason.
        """
        if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MAX_COUNT:
            raise InvalidRequest(f"count: expected a number from 1 to {MAX_COUNT}")
        nodes: dict[NodeName, int] = {}
        total = 0
        view = self.live()
        found = fitting(
            pod,
            view,
            self.vendors,
            now=datetime.now(UTC),
            most=min(most, MAX_ON_A_NODE),
            defaults=self.defaults,
            nodes=frozenset(view.nodes).difference(*self.closed.values()),
        )
        for each in found:
            total += each.pods
            if each.pods:
                nodes[each.node] = each.pods
            if total >= most:
                break
        closed = {why: len(nodes) for why, nodes in self.closed.items() if nodes}
        answer = {"count": min(total, most), "more": total >= most, "nodes": nodes}
        return answer | {"closed": closed}

    def _ask(self, pod: Json, cluster: Cluster) -> Planned:
        return planned(pod, cluster, self.vendors, now=datetime.now(UTC), defaults=self.defaults)


def _objects(body: dict[str, Any], key: str) -> Sequence[Json]:
    items = body.get(key) or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InvalidRequest(f"{key}: expected a list of Kubernetes objects")
    return items
