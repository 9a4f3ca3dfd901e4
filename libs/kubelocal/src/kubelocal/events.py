"""Record events of pods in the background, best effort, as kube-scheduler and the kubelet do.

A slow API server costs events, but never delays the work that they report. Equal events are counted
in one object, as client-go's recorder does.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from cachetools import LRUCache
from hamicommon.errors import HamiError, NotFound
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json

logger = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]
MAX_WAITING = 10_000  # one burst of pods; further events are dropped
MAX_REMEMBERED = 4096  # events whose repetition is counted, as client-go's correlator cache
MAX_MESSAGE_CHARACTERS = 1024  # the API server refuses longer ones


class EventRecorder:
    """Queue events and send them one after the other; `source` names the reporter."""

    def __init__(self, api: KubeApi, source: Callable[[Json], Json]) -> None:
        self._api = api
        self._source = source
        self._waiting: asyncio.Queue[tuple[str, Json]] = asyncio.Queue(MAX_WAITING)
        self._sent: LRUCache[tuple[str, ...], tuple[str, int]] = LRUCache(MAX_REMEMBERED)

    def record(
        self, pod: Json, kind: EventType, reason: str, message: str, *, container: str = ""
    ) -> None:
        """Queue an event about the pod, or about one of its containers."""
        metadata = pod["metadata"]
        involved = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        }
        if container:
            involved["fieldPath"] = f"spec.containers{{{container}}}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": metadata["namespace"]},
            "involvedObject": involved,
            "type": kind,
            "reason": reason,
            "message": message[:MAX_MESSAGE_CHARACTERS],
            "source": self._source(pod),
        }
        if not self._waiting.full():
            self._waiting.put_nowait((metadata["name"], event))

    async def run(self) -> None:
        """Send events until cancelled."""
        while True:
            name, event = await self._waiting.get()
            try:
                await self._send(name, event)
            except HamiError as exc:
                logger.warning("Failed to send an event", extra={"error": str(exc)})

    async def _send(self, pod_name: str, event: Json) -> None:
        path = f"/api/v1/namespaces/{event['metadata']['namespace']}/events"
        about = event["involvedObject"]
        key = (about["uid"], about.get("fieldPath", ""), event["reason"], event["message"])
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        name, count = self._sent.pop(key, ("", 0))
        if name:
            try:
                change = {"count": count + 1, "lastTimestamp": now}
                await self._api.patch(f"{path}/{name}", change)
            except NotFound:
                name, count = "", 0  # expired: begin again
        if not name:
            name = f"{pod_name}.{secrets.token_hex(8)}"
            times = {"firstTimestamp": now, "lastTimestamp": now, "count": 1}
            metadata = event["metadata"] | {"name": name}
            await self._api.create(path, event | times | {"metadata": metadata})
        self._sent[key] = (name, count + 1)
