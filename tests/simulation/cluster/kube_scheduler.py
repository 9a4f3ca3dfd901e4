"""kube-scheduler: sends one pod after the other to /filter, binds concurrently, retries later.

It also does what is rare but allowed: call /filter twice in a cycle with other nodes, never bind,
bind twice, bind without having called /filter, act on an outdated version of the pod.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from hamicommon.k8s.types import Json

from tests.simulation.cluster.api_server import ApiServer, now_text
from tests.simulation.cluster.replica import Replica
from tests.simulation.model import Model

HTTP_TIMEOUT_S = 30.0
QUIRKS = ("", "", "", "", "", "", "twice-filtered", "not-bound", "bound-twice", "unasked", "moved")


class KubeScheduler:
    """The one that leads."""

    def __init__(
        self,
        *,
        seed: str,
        api: ApiServer,
        model: Model,
        replicas: Callable[[], list[Replica]],
        note: Callable[[str], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._seed, self._api, self._model = seed, api, model
        self._replicas, self._note, self._failed = replicas, note, failed
        self._turn = asyncio.Lock()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.open = True
        """False: no new cycle begins."""
        self.busy: dict[str, int] = {}
        """Pods in the hands of a call."""
        api.listeners.append(self._on_change)

    def _on_change(self, kind: str, plural: str, item: Json) -> None:
        managed = item["spec"].get("schedulerName") == "hami-scheduler" if "spec" in item else False
        if kind == "ADDED" and plural == "pods" and managed:
            self._spawn(self._schedule(item["metadata"]["uid"]))

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_end)
        return task

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def _schedule(self, uid: str) -> None:
        rng = random.Random(f"{self._seed}:kube-scheduler:{uid}")
        while (pod := self._waiting(uid)) is not None:
            quirk = rng.choice(QUIRKS)
            if self.open:
                await self._cycle(pod, quirk, rng)
            await asyncio.sleep(rng.uniform(0.5, 3.0))

    def _waiting(self, uid: str) -> Json | None:
        pod = self._api.pod(uid)
        if pod is None or pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return None
        return pod

    async def _cycle(self, pod: Json, quirk: str, rng: random.Random) -> None:
        uid = pod["metadata"]["uid"]
        nodes = [node["metadata"]["name"] for node in self._api.all("nodes")]
        self._model.asked.add(uid)
        async with self._turn:
            if quirk == "unasked":
                chosen = rng.choice(nodes) if nodes else ""
            else:
                chosen = await self._filter(pod, nodes)
            if quirk == "twice-filtered" and chosen:
                others = [node for node in nodes if node != chosen or rng.random() < 0.5]
                chosen = await self._filter(pod, others)
        if chosen and quirk == "moved":
            chosen = rng.choice(nodes)
        if not chosen or quirk == "not-bound":
            self._refuse(uid, "Unschedulable" if not chosen else "SchedulerError")
            return
        binds = [self._bind(pod, chosen, rng)]
        if quirk == "bound-twice":
            binds.append(self._bind(pod, rng.choice([chosen, *nodes]), rng))
        if not any(not error for error in await asyncio.gather(*binds)):
            self._refuse(uid, "SchedulerError")

    async def _filter(self, pod: Json, nodes: list[str]) -> str:
        uid = pod["metadata"]["uid"]
        answer: Json = {}
        async with _Hands(self.busy, uid):
            try:
                async with asyncio.timeout(HTTP_TIMEOUT_S):
                    answer = await self._active().filter(pod, nodes)
            except (TimeoutError, ConnectionError) as exc:
                self._note(f"filter {uid}: {type(exc).__name__}")
                return ""
        found = [] if answer["Error"] else answer["NodeNames"] or []
        self._note(f"filter {uid}: {found[:1] or answer['Error'] or 'refused'}")
        return str(found[0]) if found else ""

    async def _bind(self, pod: Json, node: str, rng: random.Random) -> str:
        uid = pod["metadata"]["uid"]
        async with _Hands(self.busy, uid):
            await asyncio.sleep(rng.uniform(0.0, 0.05))
            try:
                async with asyncio.timeout(HTTP_TIMEOUT_S):
                    error = await self._active().bind(pod, node)
            except (TimeoutError, ConnectionError) as exc:
                error = type(exc).__name__
        self._note(f"bind {uid} to {node}: {error or 'bound'}")
        return error

    def _active(self) -> Replica:
        """Return the replica beside the leading kube-scheduler; another only if it died."""
        alive = self._replicas()
        if not alive:
            raise ConnectionError("no endpoints")
        return alive[0]

    def _refuse(self, uid: str, reason: str) -> None:
        if self._waiting(uid) is not None:
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": reason,
                "lastTransitionTime": now_text(),
            }
            self._api.change(uid, conditions=[condition])


class _Hands:
    def __init__(self, busy: dict[str, int], uid: str) -> None:
        self._busy, self._uid = busy, uid

    async def __aenter__(self) -> None:
        self._busy[self._uid] = self._busy.get(self._uid, 0) + 1

    async def __aexit__(self, *error: object) -> None:
        self._busy[self._uid] -= 1
        if not self._busy[self._uid]:
            del self._busy[self._uid]
