"""What we do to pods at the API server: read, patch, bind, show events."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime

from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.errors import HamiError
from hamicommon.k8s.client import KubeApi

from hami_scheduler.ports import Json, PodEvent

logger = logging.getLogger(__name__)

# What a burst of 200 pods needs twice over; beyond it events are dropped, decisions are not.
EVENT_QUEUE_SIZE = 1000
EVENT_WORKERS = 4
# Identical events of one pod are counted up in one object, as client-go does, this many remembered.
EVENT_MEMORY = 2000
_MESSAGE_LIMIT = 1024


class KubernetesPodApi:
    """Port PodApi."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def get(self, namespace: str, name: str) -> Json:
        """See the port."""
        return await self._api.get(_path(namespace, name))

    async def annotate(
        self,
        namespace: str,
        name: str,
        *,
        uid: PodUid,
        annotations: Mapping[str, str],
        labels: Mapping[str, str],
    ) -> None:
        """See the port."""
        # The uid makes the server refuse (409) a pod of the same name that was made since.
        metadata: Json = {"uid": uid, "annotations": dict(annotations)}
        if labels:
            metadata["labels"] = dict(labels)
        await self._api.patch(_path(namespace, name), {"metadata": metadata})

    async def bind(self, namespace: str, name: str, *, uid: PodUid, node: NodeName) -> None:
        """See the port."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._api.create(f"{_path(namespace, name)}/binding", body)


class KubernetesPodEvents:
    """Port PodEvents: a bounded queue and a few workers."""

    def __init__(self, api: KubeApi, *, component: str) -> None:
        self._api = api
        self._component = component
        self._queue: asyncio.Queue[PodEvent] = asyncio.Queue(EVENT_QUEUE_SIZE)
        self._seen: OrderedDict[PodEvent, tuple[str, int]] = OrderedDict()
        self.dropped = 0

    def emit(self, event: PodEvent) -> None:
        """See the port."""
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Writes events until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(EVENT_WORKERS):
                tasks.create_task(self._work(), name=f"pod-events-{number}")

    async def _work(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self._write(event)
            except HamiError as exc:
                self.dropped += 1
                logger.info("event not shown", extra={"reason": event.reason, "error": str(exc)})

    async def _write(self, event: PodEvent) -> None:
        path = f"/api/v1/namespaces/{event.namespace}/events"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        known = self._seen.pop(event, None)
        if known is not None:
            name, count = known
            self._remember(event, name, count + 1)
            await self._api.patch(f"{path}/{name}", {"count": count + 1, "lastTimestamp": now})
            return
        name = f"{event.name[:200]}.{uuid.uuid4().hex[:16]}"
        await self._api.create(path, self._body(event, name, now))
        self._remember(event, name, 1)

    def _remember(self, event: PodEvent, name: str, count: int) -> None:
        self._seen[event] = (name, count)
        if len(self._seen) > EVENT_MEMORY:
            self._seen.popitem(last=False)

    def _body(self, event: PodEvent, name: str, now: str) -> Json:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": event.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": event.namespace,
                "name": event.name,
                "uid": event.uid,
            },
            "reason": event.reason,
            "message": event.message[:_MESSAGE_LIMIT],
            "type": "Warning" if event.warning else "Normal",
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": "",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }


def _path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
