"""Events of pods, in the kubelet's text; best effort and in the background."""

from __future__ import annotations

import asyncio
import logging
import secrets
from datetime import UTC, datetime
from typing import Literal

from hamicommon.errors import HamiError
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json

from kubelocal.kubelet import pod_spec, pod_status

logger = logging.getLogger(__name__)

# Of a burst beyond this, the rest is dropped: events are for people.
MAX_WAITING = 2000

EventType = Literal["Normal", "Warning"]


class EventRecorder:
    """Takes events at once and sends them one after the other."""

    def __init__(self, api: KubeApi, node: str) -> None:
        self._api = api
        self._node = node
        self._waiting: asyncio.Queue[Json] = asyncio.Queue(maxsize=MAX_WAITING)

    def record(
        self, pod: Json, kind: EventType, reason: str, message: str, *, container: str = ""
    ) -> None:
        """Queues one event about the pod, or about one of its containers."""
        if not self._waiting.full():
            self._waiting.put_nowait(self._event(pod, kind, reason, message, container))

    def _event(self, pod: Json, kind: str, reason: str, message: str, container: str) -> Json:
        at = pod_status.stamp(datetime.now(UTC))
        involved = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod_spec.name(pod),
            "namespace": pod_spec.namespace(pod),
            "uid": pod_spec.uid(pod),
        }
        if container:
            involved["fieldPath"] = f"spec.containers{{{container}}}"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{pod_spec.name(pod)}.{secrets.token_hex(8)}",
                "namespace": pod_spec.namespace(pod),
            },
            "involvedObject": involved,
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "source": {"component": "kubelet", "host": self._node},
            "reportingComponent": "kubelet",
            "reportingInstance": self._node,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }

    async def run(self) -> None:
        """Sends until cancelled."""
        while True:
            event = await self._waiting.get()
            path = f"/api/v1/namespaces/{event['metadata']['namespace']}/events"
            try:
                await self._api.create(path, event)
            except HamiError as exc:
                logger.warning("event not sent", extra={"error": str(exc)})
