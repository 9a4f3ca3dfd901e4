"""Pods, their events and grants for nodes, in memory (ports PodApi, PodEvents, GrantAnnouncer)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import NodeName
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict, HamiError, NotFound, Unavailable
from hamicommon.grants.grant import Grant
from hamicommon.k8s.types import Json, JsonMapping


class FakePodApi:
    """Pods as an API server keeps them; `fail_next` injects what a broken one does."""

    def __init__(self) -> None:
        self._pods: dict[tuple[str, str], Json] = {}
        self._version = 0
        self.lose_next_bind_answer = False
        self.fail_next: HamiError | None = None

    def put(self, pod: Json) -> Json:
        """Create or replace a pod; return the stored object."""
        self._version += 1
        metadata = {"namespace": "default", **pod["metadata"]}
        kept = {**pod, "metadata": {**metadata, "resourceVersion": str(self._version)}}
        self._pods[metadata["namespace"], metadata["name"]] = kept
        return kept

    def remove(self, namespace: str, name: str) -> Json:
        """Delete a pod; return its last state."""
        return self._pods.pop((namespace, name))

    async def get(self, namespace: str, name: str) -> Json:
        """See the port."""
        self._maybe_fail()
        try:
            return self._pods[namespace, name]
        except KeyError:
            raise NotFound(f"pods {namespace}/{name} not found") from None

    async def annotate(
        self,
        pod: PodRef,
        *,
        annotations: Mapping[str, str] = MappingProxyType({}),
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """See the port."""
        kept = await self.get(pod.namespace, pod.name)
        metadata = kept["metadata"]
        if metadata["uid"] != pod.uid:
            raise Conflict(f"pod {pod.namespace}/{pod.name}: the uid differs")
        merged = {
            "annotations": {**(metadata.get("annotations") or {}), **annotations},
            "labels": {**(metadata.get("labels") or {}), **labels},
        }
        self.put({**kept, "metadata": {**metadata, **merged}})

    async def bind(self, pod: PodRef, node: NodeName, *, annotations: Mapping[str, str]) -> None:
        """See the port."""
        kept = await self.get(pod.namespace, pod.name)
        if kept["metadata"]["uid"] != pod.uid:
            raise Conflict(f"pod {pod.namespace}/{pod.name}: the uid differs")
        if (kept.get("spec") or {}).get("nodeName"):
            raise Conflict(f"pod {pod.name} is already assigned to node")
        merged = {**(kept["metadata"].get("annotations") or {}), **annotations}
        metadata = {**kept["metadata"], "annotations": merged}
        self.put(
            {**kept, "metadata": metadata, "spec": {**(kept.get("spec") or {}), "nodeName": node}}
        )
        if self.lose_next_bind_answer:
            self.lose_next_bind_answer = False
            raise Unavailable("no answer within 10 s")

    async def nominate(self, pod: JsonMapping, node: NodeName) -> None:
        """See the port."""
        metadata = pod["metadata"]
        kept = await self.get(metadata["namespace"], metadata["name"])
        if kept["metadata"]["uid"] != metadata["uid"]:
            raise Conflict(f"pod {metadata['name']}: the uid differs")
        self.put({**kept, "status": {**(kept.get("status") or {}), "nominatedNodeName": node}})

    def _maybe_fail(self) -> None:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error


class FakePodEvents:
    """Keeps what would have been shown."""

    def __init__(self) -> None:
        self.shown: list[Any] = []

    def emit(self, event: Any) -> None:
        """See the port."""
        self.shown.append(event)


class FakeGrantAnnouncer:
    """Keeps what would have been announced to nodes; `away` is a bus that is down.

    `not_ready` maps nodes to the reason why they can't take a pod; those in `late` bind late.
    """

    def __init__(self) -> None:
        self.away = False
        self.granted_ones: list[Grant] = []
        self.withdrawn_ones: list[tuple[Allocation, str]] = []
        self.not_ready: dict[NodeName, str] = {}
        self.late: set[NodeName] = set()

    async def offer(self, grant: Grant) -> bool | None:
        """See the port."""
        node = NodeName(grant.node)
        if not self.away and node in self.not_ready:
            raise Conflict(f"node {node} can't take a pod now: {self.not_ready[node]}")
        await self.announce(grant)
        return node in self.late

    async def announce(self, grant: Grant) -> None:
        """See the port."""
        self._check()
        self.granted_ones.append(grant)

    async def withdraw(self, allocation: Allocation, reason: str) -> None:
        """See the port."""
        self._check()
        self.withdrawn_ones.append((allocation, reason))

    def _check(self) -> None:
        if self.away:
            raise Unavailable("NATS is not connected")
