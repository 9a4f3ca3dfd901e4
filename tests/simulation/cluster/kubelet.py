"""A kubelet: admits pods one at a time in random order, with device ids picked at random.

It follows the real one where that matters: Allocate names neither pod nor container, its error
fails the pod permanently, its answer is kept for the pod's life, a dead pod's ids stay checkpointed
until the next admission, and PreStartContainer is called before every start. A process may outlive
its pod's object.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from hami_node_agent.devices.replica_ids import replicas_of
from hami_node_agent.grants.ports import Holding, KeptAnswer, KubeletReading
from hamicommon.errors import HamiError, Unavailable
from hamicommon.k8s.types import Json

from tests.simulation.cluster.agent import RESOURCE, Agent, Cards, Disk
from tests.simulation.cluster.api_server import FINALLY, ApiServer
from tests.simulation.model import Model, Running


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the device checkpoint."""

    pod_uid: str
    container: str
    ids: frozenset[str]
    nonce: str
    cards: tuple[Any, ...]

    def holding(self) -> Holding:
        """The entry as the agent reads it."""
        return Holding(
            pod_uid=self.pod_uid,
            container=self.container,
            device_ids=self.ids,
            answer=KeptAnswer(
                nonce=self.nonce,
                cards=self.cards,
                cache_dir=f"{self.pod_uid}_{self.container}",
            ),
        )


class DeviceManager:
    """Device manager of one node; `orderly`: it takes what the agent prefers, and asks once."""

    def __init__(
        self,
        *,
        rng: random.Random,
        cards: Cards,
        disk: Disk,
        note: Callable[[str], None],
        orderly: bool,
    ) -> None:
        self._rng, self._cards, self._disk = rng, cards, disk
        self._note, self._orderly = note, orderly
        self.entries: list[Entry] = []

    def of(self, pod_uid: str, container: str) -> Entry | None:
        """Return the entry of a container."""
        found = (e for e in self.entries if (e.pod_uid, e.container) == (pod_uid, container))
        return next(found, None)

    def keep_only(self, alive: Collection[str]) -> None:
        """Drop dead pods' ids, which stay until the next admission begins with this."""
        self.entries = [entry for entry in self.entries if entry.pod_uid in alive]

    async def give(
        self, pod_uid: str, container: str, wanted: int, reusable: set[str], agent: Agent | None
    ) -> Entry:
        """Call Allocate, which names no pod or container; `reusable`: ids of its init containers.

        Raises: HamiError, ConnectionError.
        """
        ids = self._choose(wanted, reusable, agent)
        nonce = await self._allocate(ids, agent)
        cards = tuple(share.uuid for share in self._disk.limits.get(nonce, ()))
        entry = Entry(pod_uid, container, ids, nonce, cards)
        self.entries.append(entry)
        return entry

    def _choose(self, wanted: int, reusable: set[str], agent: Agent | None) -> frozenset[str]:
        used = {one for entry in self.entries for one in entry.ids} - reusable
        free = [
            str(replica)
            for card in self._cards.devices()
            if card.healthy
            for replica in replicas_of(card.uuid, card.slots)
            if str(replica) not in used
        ]
        if agent is None or len(free) < wanted:
            raise Unavailable(f"no {wanted} devices are left")
        first = [one for one in free if one in reusable]
        preferred = list(agent.prefer(free, wanted)) if self._orderly else []
        self._rng.shuffle(free)
        chosen = list(dict.fromkeys([*first, *preferred, *free]))[:wanted]
        return frozenset(chosen)

    async def _allocate(self, ids: frozenset[str], agent: Agent | None) -> str:
        if agent is None or agent.plugin.reported_at is None:
            raise Unavailable("no such plugin")
        nonce = await agent.allocate(ids)
        if not self._orderly and self._rng.random() < 0.02:
            self._note("asks twice")
            nonce = await agent.allocate(ids)
        return nonce


@dataclass(slots=True, eq=False)
class SeenPod:
    """Pod of the node, with its next steps."""

    seen: Json
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    coming: deque[tuple[str, Json]] = field(default_factory=deque)
    """(type, object) of the watch that are on their way, oldest first."""
    gone: bool = False
    over: bool = False
    finish: bool = False
    restart: bool = False
    due: float = 0.0

    @property
    def uid(self) -> str:
        return str(self.seen["metadata"]["uid"])

    @property
    def leaving(self) -> bool:
        return self.gone or self.finish or bool(self.seen["metadata"].get("deletionTimestamp"))

    def containers(self) -> list[tuple[str, Json]]:
        """List (init or app, container), in the order of their starts."""
        spec = self.seen["spec"]
        return [
            *(("init", container) for container in spec.get("initContainers") or ()),
            *(("app", container) for container in spec["containers"]),
        ]

    def statuses(self) -> list[Json]:
        """Return the statuses of its running app containers."""
        return [
            {"name": container["name"], "containerID": f"containerd://{container['name']}"}
            for role, container in self.containers()
            if role == "app"
        ]

    def see_next(self) -> None:
        """Receive the oldest change that is on its way."""
        kind, self.seen = self.coming.popleft()
        self.gone = self.gone or kind == "DELETED"
        self.changed.set()


REGISTER_S = 1.0
"""Between the start of a plugin and the kubelet's knowing its devices."""
BACKOFF_S = 2.0


class Kubelet:
    """The node, all but its agent."""

    def __init__(
        self,
        node: str,
        *,
        seed: str,
        api: ApiServer,
        model: Model,
        cards: Cards,
        disk: Disk,
        note: Callable[[str], None],
        failed: Callable[[BaseException], None],
        orderly: bool,
    ) -> None:
        self.node = node
        self.agent: Agent | None = None
        self._rng = random.Random(f"{seed}:kubelet:{node}")
        self._api, self._model, self._disk = api, model, disk
        self._note, self._failed, self._orderly = note, failed, orderly
        self._devices = DeviceManager(
            rng=self._rng,
            cards=cards,
            disk=disk,
            note=lambda what: note(f"{node} {what}"),
            orderly=orderly,
        )
        self._pods: dict[str, SeenPod] = {}
        self._turn = asyncio.Lock()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.up = True
        api.listeners.append(self._on_change)

    # What the agent reads

    async def checkpointed_holdings(self) -> tuple[Holding, ...]:
        """See the port KubeletState."""
        return await self.holdings()

    async def holdings(self) -> tuple[Holding, ...]:
        """See the port KubeletState."""
        self._check_up()
        return tuple(entry.holding() for entry in self._devices.entries)

    async def read(self) -> KubeletReading:
        """See the port KubeletState."""
        return KubeletReading(holdings=await self.holdings())

    async def claim_nonces(self) -> frozenset[str]:
        """See the port KubeletState: no pod here has a claim."""
        self._check_up()
        return frozenset()

    async def pods(self) -> frozenset[tuple[str, str]]:
        """See the port KubeletState."""
        self._check_up()
        return frozenset(
            (pod.seen["metadata"]["namespace"], pod.seen["metadata"]["name"])
            for pod in self._pods.values()
        )

    def has_processes(self, pod_uid: str) -> bool:
        """See sweeping.Processes."""
        return any(uid == pod_uid for uid, _container in self._model.running)

    def _check_up(self) -> None:
        if not self.up:
            raise Unavailable("the kubelet is away")

    # The agent comes and goes

    def on_registration(self, agent: Agent) -> None:
        """Accept the plugin's socket; its devices are known a moment later."""
        self.agent = agent
        self._spawn(self._list(agent))

    async def _list(self, agent: Agent) -> None:
        await asyncio.sleep(self._rng.uniform(0.1, REGISTER_S))
        agent.plugin.reported_at = asyncio.get_running_loop().time()

    def waiting(self) -> dict[tuple[str, str], tuple[Any, ...]]:
        """Return the cards given to containers that stay and do not run."""
        pods = self._pods
        return {
            (entry.pod_uid, entry.container): entry.cards
            for entry in self._devices.entries
            if entry.pod_uid in pods
            and not pods[entry.pod_uid].leaving
            and not pods[entry.pod_uid].over
            and (entry.pod_uid, entry.container) not in self._model.running
            and pods[entry.pod_uid].seen["status"].get("phase") != "Running"
        }

    # The machine

    async def power_off(self) -> None:
        """End everything that runs here."""
        self.up = False
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for key, running in list(self._model.running.items()):
            if running.node == self.node:
                self._model.on_stop(*key)
        self._pods.clear()
        self._devices.entries.clear()
        self._turn = asyncio.Lock()

    def power_on(self) -> None:
        """Restart the pods that are bound here and not over."""
        self.up = True
        for pod in self._api.all("pods"):
            self._on_change("ADDED", "pods", pod)

    # Pods

    def finish(self, uid: str) -> bool:
        """Complete the pod's work."""
        pod = self._pods.get(uid)
        if pod is not None:
            pod.finish = True
            pod.changed.set()
        return pod is not None

    def restart(self, uid: str) -> bool:
        """End a container of the pod with an error."""
        pod = self._pods.get(uid)
        if pod is not None:
            pod.restart = True
            pod.changed.set()
        return pod is not None

    def _on_change(self, kind: str, plural: str, item: Json) -> None:
        if plural != "pods" or not self.up or item["spec"].get("nodeName") != self.node:
            return
        uid = item["metadata"]["uid"]
        pod = self._pods.get(uid)
        loop = asyncio.get_running_loop()
        if pod is None:
            if kind == "DELETED" or item["status"].get("phase") in FINALLY:
                return
            pod = self._pods[uid] = SeenPod(item)
            pod.due = loop.time() + self._rng.uniform(0.005, 0.4)
            loop.call_at(pod.due, self._first_seen, pod)
            return
        pod.due = max(pod.due, loop.time() + self._rng.uniform(0.005, 0.2))
        pod.coming.append((kind, item))
        # Timers of one moment run in any order, a watch keeps its own.
        loop.call_at(pod.due, pod.see_next)

    def _first_seen(self, pod: SeenPod) -> None:
        if self.up and self._pods.get(pod.uid) is pod:
            self._spawn(self._live(pod))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def _live(self, pod: SeenPod) -> None:
        if not self._orderly:
            await asyncio.sleep(self._rng.uniform(0.0, 0.6))
        async with self._turn:
            admitted = await self._admit(pod)
        if admitted and await self._start_all(pod):
            await self._run(pod)
        await self._end(pod)

    async def _admit(self, pod: SeenPod) -> bool:
        self._devices.keep_only({p.uid for p in self._pods.values() if not p.over})
        reusable: set[str] = set()
        for role, container in pod.containers():
            wanted = int(container["resources"]["limits"].get(RESOURCE, 0))
            if not wanted:
                continue
            try:
                entry = await self._devices.give(
                    pod.uid, container["name"], wanted, reusable, self.agent
                )
            except (HamiError, ConnectionError) as exc:
                self._note(f"{self.node} fails {pod.uid}: {type(exc).__name__}")
                pod.over = True
                self._api.change(pod.uid, phase="Failed", reason="UnexpectedAdmissionError")
                return False
            reusable = reusable | entry.ids if role == "init" else reusable - entry.ids
            self._note(f"{self.node} admits {pod.uid}/{container['name']}")
        return True

    async def _start_all(self, pod: SeenPod) -> bool:
        for role, container in pod.containers():
            while not await self._start(pod, container):
                if pod.leaving:
                    return False
                await asyncio.sleep(BACKOFF_S)
            if role == "init":
                await asyncio.sleep(self._rng.uniform(0.05, 0.5))
                self._model.on_stop(pod.uid, container["name"])
        self._api.change(pod.uid, phase="Running", containerStatuses=pod.statuses())
        return True

    async def _start(self, pod: SeenPod, container: Json) -> bool:
        if pod.leaving:
            return False
        name = container["name"]
        entry = self._devices.of(pod.uid, name)
        if entry is None:
            return True
        if self.agent is None:
            return False
        try:
            async with asyncio.timeout(30.0):
                await self.agent.pre_start(entry.ids)
        except (HamiError, ConnectionError, TimeoutError) as exc:
            self._note(f"{self.node} can't start {pod.uid}/{name}: {type(exc).__name__}")
            return False
        await asyncio.sleep(self._rng.uniform(0.01, 0.3))
        limits = container["resources"]["limits"]
        need = (int(limits["nvidia.com/gpumem"]), int(limits.get("nvidia.com/gpucores", 0)))
        self._model.on_start(
            Running(pod.uid, name, self.node, self._disk.limits.get(entry.nonce, ())),
            [need] * int(limits[RESOURCE]),
        )
        self._note(f"{self.node} starts {pod.uid}/{name}")
        return True

    async def _run(self, pod: SeenPod) -> None:
        while not pod.leaving:
            await pod.changed.wait()
            pod.changed.clear()
            if pod.restart and not pod.leaving:
                pod.restart = False
                apps = [c for role, c in pod.containers() if role == "app"]
                container = self._rng.choice(apps)
                self._model.on_stop(pod.uid, container["name"])
                self._note(f"{self.node} restarts {pod.uid}/{container['name']}")
                while not pod.leaving and not await self._start(pod, container):
                    await asyncio.sleep(BACKOFF_S)

    async def _end(self, pod: SeenPod) -> None:
        """End the processes after a while, whatever the state of the pod's object."""
        await asyncio.sleep(self._rng.uniform(0.05, 8.0 if pod.gone else 1.5))
        for _role, container in pod.containers():
            self._model.on_stop(pod.uid, container["name"])
        pod.over = True
        await asyncio.sleep(self._rng.uniform(0.01, 0.5))
        if pod.finish:
            self._api.change(pod.uid, phase="Succeeded")
        while not pod.gone:
            metadata = pod.seen["metadata"]
            if metadata.get("deletionTimestamp"):
                self._api.remove("pods", metadata["namespace"], metadata["name"])
                break
            await pod.changed.wait()
            pod.changed.clear()
        self._pods.pop(pod.uid, None)
        self._note(f"{self.node} is done with {pod.uid}")
