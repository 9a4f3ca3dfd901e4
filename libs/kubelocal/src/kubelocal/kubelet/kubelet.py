"""The kubelet: admit the node's pods one by one, and run a worker for each.

Watch events arrive through `on_upsert` and `on_delete` (an Informer's handlers); `run` admits.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass

from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json

from kubelocal.kubelet import pod_spec
from kubelocal.kubelet.admission import PodAdmission
from kubelocal.kubelet.containers.worker import Machine
from kubelocal.kubelet.pod_worker import PodWorker
from kubelocal.pod_resources import Amounts, pod_requests

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """Fault for tests: pods that arrive within `window_s` are admitted in random order."""

    window_s: float
    chance: random.Random


class Kubelet:
    """Pods of one node; `tasks` is the task group of the pods' workers."""

    def __init__(
        self,
        machine: Machine,
        api: KubeApi,
        admission: PodAdmission,
        tasks: asyncio.TaskGroup,
        *,
        shuffle: Shuffle | None = None,
    ) -> None:
        self._machine = machine
        self._api = api
        self._admission = admission
        self._tasks = tasks
        self._shuffle = shuffle
        self._known: dict[str, Json] = {}
        self._requests: dict[str, Amounts] = {}
        self._workers: dict[str, PodWorker] = {}
        self._new: asyncio.Queue[str] = asyncio.Queue()
        self._admitting: str | None = None
        self._synced = False

    # Watch events

    def on_upsert(self, pod: Json, old: Json | None) -> None:
        """Handle a new or changed pod of this node."""
        uid = pod_spec.uid(pod)
        self._known[uid] = pod
        worker = self._workers.get(uid)
        if worker is not None:
            worker.pod = pod
            if pod_spec.is_deleting(pod):
                worker.request_stop(pod_spec.grace_s(pod))
        elif old is None:
            self._new.put_nowait(uid)

    def on_delete(self, pod: Json) -> None:
        """Stop what still runs of a pod whose object is gone."""
        uid = pod_spec.uid(pod)
        self._known.pop(uid, None)
        worker = self._workers.get(uid)
        if worker is not None:
            worker.request_stop(pod_spec.grace_s(pod), gone=True)

    # Queries of other parts

    def active_pods(self) -> list[str] | None:
        """Return uids of pods that may hold devices: not ended, or still being stopped.

        None before the first list is complete: an empty list would mean that all pods have ended.
        """
        if not self._synced:
            return None
        waiting = [
            uid
            for uid, pod in self._known.items()
            if uid not in self._workers and not pod_spec.is_terminal(pod)
        ]
        return waiting + [uid for uid, worker in self._workers.items() if worker.active]

    def listed_pods(self) -> list[Json]:
        """Return pods for PodResources: those with a worker, and the one in admission."""
        pods = [worker.pod for worker in self._workers.values()]
        if self._admitting is not None and self._admitting in self._known:
            pods.append(self._known[self._admitting])
        return pods

    # The admission loop

    async def run(self, synced: asyncio.Event) -> None:
        """Admit pods until cancelled, after the first list is complete."""
        await synced.wait()
        self._synced = True
        await self._stop_orphans()
        first = [self._new.get_nowait() for _ in range(self._new.qsize())]
        for uid in sorted(first, key=self._creation_time):
            await self._take(uid)
        while True:
            for uid in await self._next():
                await self._take(uid)

    async def _next(self) -> list[str]:
        """Return the pod that came first; with `shuffle` a random one of the window."""
        uids = [await self._new.get()]
        if self._shuffle is not None:
            await asyncio.sleep(self._shuffle.window_s)
            uids += [self._new.get_nowait() for _ in range(self._new.qsize())]
            self._shuffle.chance.shuffle(uids)
        return uids

    def _creation_time(self, uid: str) -> str:
        metadata = self._known.get(uid, {}).get("metadata") or {}
        return str(metadata.get("creationTimestamp") or "")

    async def _stop_orphans(self) -> None:
        """Stop containers of pods that were deleted while no kubelet ran."""
        for uid in self._machine.runtime.known_pods():
            if uid in self._known:
                continue
            logger.info("Stopping the containers of a deleted pod", extra={"pod_uid": uid})
            left = list(self._machine.runtime.running_of(uid))
            for container in left:
                container.kill()
            for container in left:
                await container.wait()
            await self._machine.runtime.forget(uid)

    async def _take(self, uid: str) -> None:
        pod = self._known.get(uid)
        if pod is None or uid in self._workers:
            return
        rejection = None
        if not pod_spec.is_terminal(pod) and not pod_spec.is_deleting(pod):
            self._admitting = uid
            try:
                rejection = await self._admission.admit(pod, self._others(uid))
            finally:
                self._admitting = None
        worker = PodWorker(self._machine, self._api, pod, rejection=rejection)
        self._workers[uid] = worker
        latest = self._known.get(uid)
        if latest is None:
            worker.request_stop(pod_spec.grace_s(pod), gone=True)
        elif pod_spec.is_deleting(latest):
            worker.request_stop(pod_spec.grace_s(latest))
        self._requests[uid] = pod_requests(pod["spec"])
        self._tasks.create_task(self._run(uid, worker), name=f"pod {pod_spec.name(pod)}")

    def _others(self, uid: str) -> Iterable[Amounts]:
        return [
            self._requests[other]
            for other, worker in self._workers.items()
            if other != uid and worker.active
        ]

    async def _run(self, uid: str, worker: PodWorker) -> None:
        try:
            await worker.run()
        finally:
            self._workers.pop(uid, None)
            self._requests.pop(uid, None)
