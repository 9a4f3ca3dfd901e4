"""What users read about a scheduling attempt: events, and the PodScheduled condition.

Both are written behind the loop's back from a bounded queue: a slow API server costs messages,
never placements. Equal events are counted in one object, as kube-scheduler's recorder does.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime

from hamicommon.errors import HamiError, NotFound
from hamicommon.k8s.client import KubeApi, PatchType
from hamicommon.k8s.types import Json

logger = logging.getLogger(__name__)

_BACKLOG = 10_000  # one burst of pods; more is dropped and counted
_REMEMBERED = 4096  # events whose repetition is counted, as client-go's correlator cache


def fit_message(reasons: Mapping[str, tuple[str, ...]], total: int) -> str:
    """kube-scheduler's sentence: how many nodes were refused for which reason."""
    counts: dict[str, int] = {}
    for node_reasons in reasons.values():
        for reason in node_reasons:
            counts[reason] = counts.get(reason, 0) + 1
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{total} nodes are available: {listed}."


class Reporter:
    """Writes events and conditions in the background."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._queue: asyncio.Queue[tuple[str, Json, str, str]] = asyncio.Queue(_BACKLOG)
        self._known: OrderedDict[tuple[str, str, str], tuple[str, int]] = OrderedDict()
        self.dropped = 0

    def scheduled(self, pod: Json, node: str) -> None:
        """The pod is bound."""
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        self._put("event", pod, "Scheduled", f"Successfully assigned {name} to {node}")

    def failed(self, pod: Json, reason: str, message: str) -> None:
        """The attempt failed; `reason` is Unschedulable or SchedulerError."""
        self._put("event", pod, "FailedScheduling", message)
        self._put("condition", pod, reason, message)

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            kind, pod, reason, message = await self._queue.get()
            try:
                if kind == "event":
                    await self._event(pod, reason, message)
                else:
                    await self._condition(pod, reason, message)
            except NotFound:
                continue  # the pod is gone
            except HamiError as exc:
                logger.warning("report not written", extra={"kind": kind, "error": str(exc)})

    def _put(self, kind: str, pod: Json, reason: str, message: str) -> None:
        try:
            self._queue.put_nowait((kind, pod, reason, message))
        except asyncio.QueueFull:
            self.dropped += 1

    async def _event(self, pod: Json, reason: str, message: str) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/events"
        key = (metadata["uid"], reason, message)
        now = _timestamp()
        name, count = self._known.pop(key, ("", 0))
        if name:
            try:
                change = {"count": count + 1, "lastTimestamp": now}
                await self._api.patch(f"{path}/{name}", change)
                self._remember(key, name, count + 1)
                return
            except NotFound:
                pass  # expired; begin again
        name = f"{metadata['name']}.{secrets.token_hex(8)}"
        event = _event(pod, name, reason, message, now)
        await self._api.create(path, event)
        self._remember(key, name, 1)

    def _remember(self, key: tuple[str, str, str], name: str, count: int) -> None:
        self._known[key] = (name, count)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)

    async def _condition(self, pod: Json, reason: str, message: str) -> None:
        metadata = pod["metadata"]
        old = scheduled_condition(pod)
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": old.get("lastTransitionTime")
            if old.get("status") == "False"
            else _timestamp(),
        }
        if {**condition, "lastTransitionTime": old.get("lastTransitionTime")} == {
            **old,
            "lastProbeTime": old.get("lastProbeTime"),
        }:
            return
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        # The uid makes the server refuse if another pod has taken the name.
        change = {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": [condition]}}
        await self._api.patch(path, change, PatchType.STRATEGIC)


def scheduled_condition(pod: Json) -> Json:
    """The pod's PodScheduled condition, or {}."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled":
            return dict(condition)
    return {}


def _event(pod: Json, name: str, reason: str, message: str, now: str) -> Json:
    metadata = pod["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata.get("resourceVersion", ""),
        },
        "type": "Normal" if reason == "Scheduled" else "Warning",
        "reason": reason,
        "message": message[:1024],  # the API server refuses longer ones
        "source": {"component": pod["spec"].get("schedulerName") or "default-scheduler"},
        "reportingComponent": "",
        "reportingInstance": "",
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
    }


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
