"""Access to pods, nodes, claims, events and tokens at the API server."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from cachetools import LRUCache
from hamicommon.access.reviews import user_of
from hamicommon.clipping import clip
from hamicommon.domain.ids import NodeName
from hamicommon.domain.pod_ref import PodRef
from hamicommon.dra.claims import claim_path
from hamicommon.dra.shapes import templates_path
from hamicommon.errors import Conflict, NotFound, Unavailable
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.event_names import event_name
from hamicommon.k8s.types import Json, JsonMapping

from hami_scheduler.background_queue import BackgroundQueue
from hami_scheduler.bus.auth import Bearer
from hami_scheduler.ports.cluster import PodEvent

# Events of one series are counted up in one object, as client-go does, this many remembered; the
# object's name identifies the series, so that a replica that does not remember finds it as well.
MAX_EVENTS = 20_000
# Within this time the same message is only counted, and the next write has the count; doubled by
# every write, up to the rate at which client-go lets one pod's events through.
EVENT_INTERVAL_S = 5.0
MAX_EVENT_INTERVAL_S = 300.0
_MESSAGE_LIMIT = 1024
_BUDGET = "disruption budget"
"""Text in the API server's answer when a PodDisruptionBudget forbids an eviction."""


class KubernetesPodApi:
    """Pods at the API server."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def get(self, namespace: str, name: str) -> Json:
        """Read the pod. Raises: NotFound, Unavailable."""
        return await self._api.get(_path(namespace, name))

    async def annotate(
        self,
        pod: PodRef,
        *,
        annotations: Mapping[str, str] = MappingProxyType({}),
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Patch annotations and labels of the pod."""
        # The uid makes the server refuse (409) a pod of the same name that was made since.
        metadata: Json = {"uid": pod.uid, "annotations": dict(annotations)}
        if labels:
            metadata["labels"] = dict(labels)
        await self._api.patch(_path(pod.namespace, pod.name), {"metadata": metadata})

    async def bind(self, pod: PodRef, node: NodeName, *, annotations: Mapping[str, str]) -> None:
        """Bind the pod and annotate it, in one write."""
        # The API server puts a Binding's annotations on the pod (setPodHostAndAnnotations).
        metadata = {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {**metadata, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._api.create(f"{_path(pod.namespace, pod.name)}/binding", body)

    async def set_conditions(self, pod: Json, conditions: list[dict[str, Any]]) -> None:
        """Write the pod's conditions, unless it has changed since it was read."""
        # A merge patch replaces the list, so it counts only for the pod as it was read.
        body = {"metadata": _guard(pod), "status": {"conditions": conditions}}
        await self._api.patch(f"{_path_of(pod)}/status", body)

    async def nominate(self, pod: JsonMapping, node: NodeName) -> None:
        """Write `status.nominatedNodeName`. Raises: NotFound, Conflict, Forbidden, Unavailable."""
        guard = {"uid": pod["metadata"]["uid"]}
        body = {"metadata": guard, "status": {"nominatedNodeName": node}}
        await self._api.patch(f"{_path_of(pod)}/status", body)

    async def evict(self, pod: Json, *, dry_run: bool = False) -> None:
        """Evict exactly this pod by the eviction API."""
        metadata = pod["metadata"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "deleteOptions": {"preconditions": {"uid": metadata["uid"]}},
        }
        path = f"{_path_of(pod)}/eviction"
        try:
            await self._api.create(f"{path}?dryRun=All" if dry_run else path, body)
        except Unavailable as exc:
            # 429 has other reasons too, which pass.
            if _BUDGET in str(exc):
                raise Conflict(str(exc)) from exc
            raise

    async def delete(self, pod: Json, *, grace_s: int) -> None:
        """Delete exactly this pod. Raises: NotFound, Conflict, Forbidden, Unavailable."""
        options: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": grace_s,
            "preconditions": {"uid": pod["metadata"]["uid"]},
        }
        await self._api.delete(_path_of(pod), options)


class KubernetesClaimApi:
    """ResourceClaims at the API server."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def get(self, namespace: str, name: str) -> Json:
        """Read a claim. Raises: NotFound, Unavailable, Forbidden (no right to read claims)."""
        return await self._api.get(claim_path(namespace, name))

    async def set_status(self, claim: Json, status: Json) -> Json:
        """Set fields of an unchanged claim's status; None removes a field.

        Returns the claim as the API server has it then.

        Raises: NotFound, Conflict (it changed), Forbidden, InvalidRequest, Unavailable.
        """
        path = claim_path(claim["metadata"]["namespace"], claim["metadata"]["name"])
        body = {"metadata": _guard(claim), "status": status}
        return await self._api.patch(f"{path}/status", body)


class KubernetesTemplateApi:
    """ResourceClaimTemplates at the API server."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def create(self, namespace: str, body: Json) -> Json:
        """Create a ResourceClaimTemplate and return it.

        Raises: Conflict (it is there), Forbidden (the namespace is being deleted), InvalidRequest,
        NotFound (the namespace is gone), Unavailable.
        """
        return await self._api.create(templates_path(namespace), body)

    async def delete(self, namespace: str, name: str, *, uid: str) -> None:
        """Delete a template. Raises: NotFound, Conflict (another uid), Unavailable."""
        body = {"preconditions": {"uid": uid}}
        await self._api.delete(f"{templates_path(namespace)}/{name}", body)


class KubernetesNodeApi:
    """Nodes at the API server."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def get(self, name: NodeName) -> Json:
        """Read the node. Raises: NotFound, Unavailable."""
        return await self._api.get(f"/api/v1/nodes/{name}")

    async def annotate(
        self, name: NodeName, annotations: Mapping[str, str | None], *, resource_version: str
    ) -> None:
        """Patch annotations of a node that is still at this version; None removes a key."""
        metadata = {"resourceVersion": resource_version, "annotations": dict(annotations)}
        await self._api.patch(f"/api/v1/nodes/{name}", {"metadata": metadata})


@dataclass(eq=False)
class KubernetesPodEvents:
    """Events at the API server, written while the scheduler is idle."""

    api: KubeApi
    background: BackgroundQueue
    component: str
    _shown: LRUCache[str, _WrittenEvent] = field(
        default_factory=lambda: LRUCache(MAX_EVENTS), init=False
    )
    dropped: int = field(default=0, init=False)

    def emit(self, event: PodEvent) -> None:
        """Queue the event, or drop it if the queue is full. Never waits, never raises."""
        event = replace(event, message=clip(event.message, _MESSAGE_LIMIT))
        self.dropped += not self.background.put(partial(self._show, event))

    async def _show(self, event: PodEvent) -> None:
        try:
            await self._write(event)
        except Exception:  # counted here, and logged by the queue
            self.dropped += 1
            raise

    async def _write(self, event: PodEvent) -> None:
        path = f"/api/v1/namespaces/{event.pod.namespace}/events"
        name = _event_name(event)
        shown = self._shown.pop(name, None)
        if shown is None:
            shown = await self._create(path, name, event)
        elif not (event.once and shown.message == event.message):
            shown.count += 1
            quiet = time.monotonic() - shown.written_at < shown.quiet_s
            if shown.message != event.message or not quiet:
                await self._count_up(path, name, event, shown)
        self._shown[name] = shown

    async def _create(self, path: str, name: str, event: PodEvent) -> _WrittenEvent:
        shown = _WrittenEvent(message=event.message, count=1, written_at=time.monotonic())
        try:
            await self.api.create(path, self._body(event, name))
        except Conflict:
            # Another replica, or this one before its restart.
            found = await self.api.get(f"{path}/{name}")
            if event.once and found.get("message") == event.message:
                return shown
            shown.count = int(found.get("count") or 1) + 1
            await self._count_up(path, name, event, shown)
        return shown

    async def _count_up(self, path: str, name: str, event: PodEvent, shown: _WrittenEvent) -> None:
        at = _format_time(event.at)
        change = {"count": shown.count, "lastTimestamp": at, "message": event.message}
        try:
            await self.api.patch(f"{path}/{name}", change)
        except NotFound:
            # The API server forgets events after an hour.
            shown.count = 1
            await self.api.create(path, self._body(event, name))
        shown.message, shown.written_at = event.message, time.monotonic()
        shown.quiet_s = min(2 * shown.quiet_s, MAX_EVENT_INTERVAL_S)

    def _body(self, event: PodEvent, name: str) -> Json:
        at = _format_time(event.at)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": event.pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": event.kind,
                "namespace": event.pod.namespace if event.kind == "Pod" else "",
                "name": event.pod.name,
                "uid": event.pod.uid,
            },
            "reason": event.reason,
            "message": event.message,
            "type": "Warning" if event.warning else "Normal",
            "source": {"component": self.component},
            "reportingComponent": self.component,
            "reportingInstance": "",
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }


@dataclass(slots=True)
class _WrittenEvent:
    """Event object as last written, with the repetitions since then."""

    message: str
    count: int
    written_at: float
    quiet_s: float = EVENT_INTERVAL_S


def _event_name(event: PodEvent) -> str:
    series = "\0".join((event.pod.uid, event.reason, event.series or event.message))
    digest = hashlib.blake2b(series.encode(), digest_size=8).hexdigest()
    return event_name(event.pod.name, digest)


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _path_of(pod: JsonMapping) -> str:
    return _path(pod["metadata"]["namespace"], pod["metadata"]["name"])


def _guard(found: Json) -> Json:
    """Return a guard with which the API server refuses (409) a changed or other object."""
    return {key: found["metadata"][key] for key in ("uid", "resourceVersion")}


_EXTRA = "authentication.kubernetes.io/"


@dataclass(eq=False)
class KubernetesTokenReviews:
    """TokenReviews; before Kubernetes 1.30 also pods, from which the node is read."""

    api: KubeApi
    audience: str

    async def review(self, token: str) -> Bearer:
        """Review a token. Raises: InvalidRequest if it is not valid for the bus, Unavailable."""
        user = await user_of(self.api, token, self.audience)
        return Bearer(username=user["username"], node=await self._node_of(user))

    async def _node_of(self, user: dict[str, Any]) -> NodeName | None:
        extra = user.get("extra") or {}
        named = extra.get(f"{_EXTRA}node-name")
        if named:
            return NodeName(named[0])
        pods, uids = extra.get(f"{_EXTRA}pod-name"), extra.get(f"{_EXTRA}pod-uid")
        if not pods or not uids:
            return None
        namespace = user["username"].split(":")[2]
        try:
            pod = await self.api.get(f"/api/v1/namespaces/{namespace}/pods/{pods[0]}")
        except NotFound:
            return None
        node = (pod.get("spec") or {}).get("nodeName")
        return NodeName(node) if node and pod["metadata"]["uid"] == uids[0] else None
