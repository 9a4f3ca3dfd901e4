"""The whole system on one clock: replicas, agents, kubelets, kube-scheduler and faults.

`happenings.py` carries out a script; everything else follows from it. Each event at a boundary (an
answer, an Allocate, a start, a fault, a commit) is a step: it is noted in the history, and the
model checks it.
"""

import asyncio
import hashlib
from collections.abc import Coroutine, Sequence
from typing import Any

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.ledger.model import Change

from tests.simulation.cluster.agent import Agent, Cards, Disk
from tests.simulation.cluster.api_server import ApiServer, now_text
from tests.simulation.cluster.kube_scheduler import KubeScheduler
from tests.simulation.cluster.kubelet import Kubelet
from tests.simulation.cluster.processes import Weather
from tests.simulation.cluster.replica import RULES, Replica, quota_of
from tests.simulation.model import Broken, Model
from tests.simulation.scripts import Scenario
from tests.simulation.stores.hub import Hub
from tests.simulation.stores.ledger import SimLedger
from tests.simulation.stores.redis_server import RedisServer

MEMORY_MIB = 10_000
SLOTS = 4
WARM_UP_S = 4.0


class World:
    """Everything; to be made inside a `fake_time`."""

    def __init__(self, scenario: Scenario) -> None:
        self._seed = scenario.seed
        self._loop = asyncio.get_running_loop()
        self.scenario = scenario
        self.weather = Weather()
        self.history: list[str] = []
        self.steps = 0
        self.broken: BaseException | None = None
        self._digest = hashlib.sha256()
        self.cards = {node: Cards(_cards(node, scenario.cards)) for node in scenario.nodes}
        self._disks = {node: Disk() for node in scenario.nodes}
        self.model = Model(
            [(node, card) for node, cards in self.cards.items() for card in cards.devices()],
            scenario.quotas,
        )
        self.api = ApiServer()
        self.hub = Hub()
        self.redis = RedisServer()
        self.ledger = SimLedger(on_commit=self._on_commit, quota_of=quota_of, rules=RULES)
        self.replicas: dict[str, Replica] = {}
        self.agents: dict[str, Agent] = {}
        self._starts = 0
        self._errands: dict[asyncio.Task[None], None] = {}
        self.kubelets = {node: self._kubelet(node) for node in scenario.nodes}
        self.kube_scheduler = KubeScheduler(
            seed=self._seed,
            api=self.api,
            model=self.model,
            replicas=lambda: list(self.replicas.values()),
            note=self.note,
            failed=self._on_failure,
        )

    async def begin(self) -> None:
        """Start everything, without faults."""
        for namespace, limit in self.scenario.quotas.items():
            self.api.put(
                "resourcequotas",
                {
                    "metadata": {"namespace": namespace, "name": "q", "uid": f"q-{namespace}"},
                    "spec": {"hard": {"limits.nvidia.com/gpumem": str(limit)}},
                },
            )
        for node in self.scenario.nodes:
            self._put_node(node)
            self.start_agent(node)
        for number in range(self.scenario.replicas):
            self.start_replica(f"scheduler-{number}")
        await asyncio.sleep(WARM_UP_S)

    def note(self, what: str) -> None:
        """Record a step in the history, and check the model."""
        self.steps += 1
        line = f"{self._loop.time():9.3f} {what}"
        self.history.append(line)
        self._digest.update(line.encode())
        try:
            self.model.check(self.ledger)
        except Broken as exc:
            self._on_failure(exc)

    def digest(self) -> str:
        """Return the hash of the history, to compare two runs."""
        return self._digest.hexdigest()

    def raise_if_broken(self) -> None:
        """Raise the first error."""
        for process in [r.process for r in self.replicas.values()] + [
            a.process for a in self.agents.values()
        ]:
            if process.crash is not None:
                self._on_failure(process.crash)
        if self.broken is not None:
            raise self.broken

    async def end(self) -> None:
        """Stop everything."""
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for replica in self.replicas.values():
            replica.process.alive = False
        for agent in self.agents.values():
            agent.process.alive = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def errands_done(self) -> None:
        """Wait until all errands are done."""
        while self._errands:
            await asyncio.gather(*list(self._errands))

    def errand(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._errands[task] = None
        task.add_done_callback(lambda done: self._errands.pop(done, None))

    async def replica_away(self, name: str, seconds: float) -> None:
        replica = self.replicas.pop(name)
        await replica.kill()
        await asyncio.sleep(seconds)
        self.start_replica(name)

    async def agent_away(self, node: str, seconds: float) -> None:
        self.kubelets[node].agent = None
        await self.agents.pop(node).kill()
        await asyncio.sleep(seconds)
        if self.kubelets[node].up:
            self.start_agent(node)

    async def node_away(self, node: str, seconds: float) -> None:
        """Switch the machine off; delete its Node, collect its pods, bring it back."""
        await self.kubelets[node].power_off()
        agent = self.agents.pop(node, None)
        self.kubelets[node].agent = None
        if agent is not None:
            await agent.kill()
        await asyncio.sleep(seconds / 2)
        self.api.remove("nodes", "", node)
        for pod in self.api.all("pods"):
            if pod["spec"].get("nodeName") == node:
                self.delete(pod["metadata"]["uid"], force=True)
        await asyncio.sleep(seconds / 2)
        self._put_node(node)
        self.kubelets[node].power_on()
        self.start_agent(node)

    def start_replica(self, name: str) -> None:
        if name not in self.replicas:
            self._starts += 1
            self.replicas[name] = Replica(
                f"{name}.{self._starts}",
                seed=self._seed,
                weather=self.weather,
                ledger=self.ledger,
                redis=self.redis,
                hub=self.hub,
                api=self.api,
            )

    def start_agent(self, node: str) -> None:
        if node not in self.agents:
            self._starts += 1
            self.agents[node] = Agent(
                node,
                number=self._starts,
                seed=self._seed,
                weather=self.weather,
                hub=self.hub,
                api=self.api,
                kubelet=self.kubelets[node],
                processes=self.kubelets[node],
                disk=self._disks[node],
                cards=self.cards[node],
            )
            self.kubelets[node].on_registration(self.agents[node])

    def _kubelet(self, node: str) -> Kubelet:
        return Kubelet(
            node,
            seed=self._seed,
            api=self.api,
            model=self.model,
            cards=self.cards[node],
            disk=self._disks[node],
            note=self.note,
            failed=self._on_failure,
            orderly=self.scenario.orderly,
        )

    def _put_node(self, node: str) -> None:
        self.api.put("nodes", {"metadata": {"name": node, "uid": f"node-{node}"}, "spec": {}})

    def delete(self, uid: str, *, force: bool) -> bool:
        pod = self.api.pod(uid)
        if pod is None:
            return False
        metadata = pod["metadata"]
        if force or not pod["spec"].get("nodeName"):
            self.api.remove("pods", metadata["namespace"], metadata["name"])
        elif not metadata.get("deletionTimestamp"):
            self.api.put("pods", {**pod, "metadata": {**metadata, "deletionTimestamp": now_text()}})
        else:
            return False
        return True

    def _on_commit(self, changes: Sequence[tuple[Change, Allocation | None]]) -> None:
        rows = []
        for change, before in changes:
            row = change.allocation
            rows.append(f"{row.pod_uid}#{row.attempt} {row.state} on {row.node} ({row.reason})")
            try:
                self.model.on_commit(change, before)
            except Broken as exc:
                self._on_failure(exc)
        self.note(f"commit {', '.join(rows)}")

    def _on_failure(self, error: BaseException) -> None:
        if self.broken is None:
            self.broken = error
            self.history.append(f"{self._loop.time():9.3f} BROKEN {error!r}")


def _cards(node: str, count: int) -> list[GpuDevice]:
    return [
        GpuDevice(
            uuid=GpuUuid(f"GPU-00000000-0000-0000-{int(node[1:]):04d}-{index:012d}"),
            index=index,
            vendor="NVIDIA",
            type="NVIDIA A100",
            slots=SLOTS,
            memory_mib=MEMORY_MIB,
            core_percent=100,
        )
        for index in range(count)
    ]
