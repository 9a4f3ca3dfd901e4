"""Cases of `hamictl simulate` on a real control plane whose nodes are played: each pod once by
limits and once by claims, on the same cards.

Each case has its own nodes, so all nodes exist together. One pod by limits holds, card by card,
what the case's placed pods hold; then the case's pod comes.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
from hami_node_agent.inventory.publisher import inventory_device
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.requests import PodRequest
from hamicommon.errors import InvalidRequest
from hamicommon.events import InventoryDevice
from hamicommon.k8s.annotations import annotations_of
from hamicommon.k8s.pod_annotations import NVIDIA_MODE
from hamicommon.k8s.types import Json
from hamicommon.simulation.cluster import MIG, Cluster, read_cluster
from hamicommon.vendors.pod_request import DEFAULT_POLICY, PodRequests
from hamicommon.vendors.registry import Vendors

from bench.pods.claims import ClaimNodes
from bench.pods.system import SCHEDULER, Bench, Wanted, system
from tests.waiting import eventually

PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
HOST = "kubernetes.io/hostname"
MAX_PARALLEL_CREATES = 16
LOOK_S = 0.5

Placement = tuple[str, tuple[tuple[int, str, int, int], ...]]
"""Node; of each slice container, card, MiB and percent of cores, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One of them, under names that no other has."""

    name: str
    pod: Json
    request: PodRequest
    cluster: Cluster

    @property
    def cards(self) -> Iterable[tuple[str, DeviceUsage]]:
        """With their nodes; without those in MIG mode, which are in no ResourceSlice."""
        for node in self.cluster.nodes:
            for state in self.cluster.view.cards(node):
                if state.usage.device.mode != MIG:
                    yield node, state.usage

    @property
    def fits(self) -> bool:
        """Whether the cards have what pods hold of them."""
        return all(
            usage.used_slots <= usage.device.slots
            and usage.used_memory_mib <= usage.device.memory_mib
            and usage.used_core_percent <= usage.device.core_percent
            for _, usage in self.cards
        )


def case_of(number: int, given: Json, vendors: Vendors) -> Case | None:
    """None for a pod whose request can't be read."""
    text = json.dumps(given["in"]).replace("GPU-", f"GPU-c{number}-")
    for node in given["in"]["nodes"]:
        name = node["metadata"]["name"]
        text = text.replace(f'"{name}"', f'"c{number}-{name}"')
    case = json.loads(text)
    pod = case["pod"]
    try:
        request = PodRequests(vendors=vendors, defaults=DEFAULT_POLICY).of(pod)
    except InvalidRequest:
        return None
    return Case(
        name=f"c{number}",
        pod=pod,
        request=request,
        cluster=read_cluster(case["nodes"], case["pods"], vendors, asking=[pod]),
    )


Asked = tuple[Json, list[Json]]
"""A pod and the claims that it names."""


@dataclass(slots=True, kw_only=True)
class Played:
    """The running system."""

    bench: Bench
    nodes: ClaimNodes
    ledger: asyncpg.Connection

    async def fill(self, cases: Iterable[Case]) -> None:
        """Occupy the cards' taken parts of all cases by pods with limits."""
        await self._run([_holder(*card) for case in cases for card in case.cards])
        await self.nodes.publish()

    async def _run(self, pods: Iterable[Json | None]) -> None:
        made = await self._create([(PODS, pod) for pod in pods if pod is not None])
        uids = {pod["metadata"]["uid"] for pod in made}
        await eventually(lambda: all(map(self.bench.runs, uids)), "the pods of the cases to run")

    async def _create(self, bodies: Iterable[tuple[str, Json]]) -> list[Json]:
        gate = asyncio.Semaphore(MAX_PARALLEL_CREATES)

        async def one(path: str, body: Json) -> Json:
            async with gate:
                return await self.bench.api.create(path, body)

        return await asyncio.gather(*(one(path, body) for path, body in bodies))

    async def place(self, asked: Mapping[str, Asked]) -> dict[str, Placement | None]:
        """Placements of all pods together, by case; None for the refused ones. The pods are gone
        afterwards."""
        await self._create([(CLAIMS, claim) for _, claims in asked.values() for claim in claims])
        made = await self._create([(PODS, pod) for pod, _ in asked.values()])
        uids = dict(zip((pod["metadata"]["uid"] for pod in made), asked, strict=True))
        found: dict[str, Placement | None] = {}

        async def has_every_pod() -> bool:
            refused = await self._refused_uids()
            for uid in uids.keys() - found.keys():
                if self.bench.runs(uid):
                    found[uid] = await self._placement(uid)
                elif uid in refused:
                    found[uid] = None
            return found.keys() == uids.keys()

        await eventually(slow_down(has_every_pod), "an answer to each pod")
        await self._clear(asked)
        return {uids[uid]: placement for uid, placement in found.items()}

    async def _refused_uids(self) -> set[str]:
        """Uids of pods for which there is no room, by the ledger, by kube-scheduler or at their
        preparation."""
        rows = await self.ledger.fetch("SELECT pod_uid FROM decisions WHERE outcome = 'refused'")
        found = {row["pod_uid"] for row in rows} | set(self.nodes.refused)
        pods = (await self.bench.api.get(PODS))["items"]
        found.update(pod["metadata"]["uid"] for pod in pods if _unschedulable(pod))
        return found

    async def _placement(self, uid: str) -> Placement:
        rows = await self.ledger.fetch(
            "SELECT a.node, x.container_index, x.device_uuid, x.memory_mib, x.core_percent"
            " FROM allocations a JOIN allocation_devices x ON x.allocation_id = a.id"
            " WHERE a.ended_at IS NULL AND a.pod_uid = $1 ORDER BY x.container_index, x.position",
            uid,
        )
        return rows[0]["node"], tuple(tuple(row)[1:] for row in rows)

    async def _clear(self, asked: Mapping[str, Asked]) -> None:
        for pod, claims in asked.values():
            await self.bench.api.delete(f"{PODS}/{pod['metadata']['name']}")
            for claim in claims:
                await self.bench.api.delete(f"{CLAIMS}/{claim['metadata']['name']}")
        names = [pod["metadata"]["name"] for pod, _ in asked.values()]
        query = "SELECT count(*) FROM allocations WHERE ended_at IS NULL AND pod_name = ANY($1)"

        async def free() -> bool:
            return bool(await self.ledger.fetchval(query, names) == 0)

        await eventually(slow_down(free), "the cards of the cases' pods to be free")


def slow_down(look: Callable[[], Awaitable[bool]]) -> Callable[[], Awaitable[bool]]:
    """Look less often: each look asks the servers about all pods."""

    async def slowly() -> bool:
        return await look() or await asyncio.sleep(LOOK_S, result=False)

    return slowly


def asking(case: Case, *, prefix: str, modes: str = "") -> Json:
    """The case's pod, only for the case's nodes; `modes` of cards, if it names none."""
    own, written = case.pod, dict(annotations_of(case.pod))
    if modes:
        written.setdefault(NVIDIA_MODE.name, modes)
    nodes = [str(node) for node in case.cluster.nodes]
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": nodes}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {
        "metadata": {
            "name": f"{prefix}-{case.name}",
            "annotations": written,
        },
        "spec": {
            **own["spec"],
            "schedulerName": SCHEDULER,
            "affinity": {"nodeAffinity": required},
        },
    }


def _unschedulable(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("reason") == "Unschedulable" for each in conditions)


def _holder(node: str, usage: DeviceUsage) -> Json | None:
    """A pod that takes as much of the card as pods hold there: a container for each slot."""
    slots = usage.used_slots
    if not slots or not usage.device.healthy:
        return None
    card = usage.device.uuid

    def part(amount: int, number: int) -> str:
        return str(amount * (number + 1) // slots - amount * number // slots)

    containers = [
        {
            "name": f"c{number}",
            "image": "none",
            "resources": {
                "limits": {
                    "nvidia.com/gpu": "1",
                    "nvidia.com/gpumem": part(usage.used_memory_mib, number),
                    "nvidia.com/gpucores": part(usage.used_core_percent, number),
                }
            },
        }
        for number in range(slots)
    ]
    annotations = {"nvidia.com/use-gpuuuid": card}
    return {
        "metadata": {"name": f"holds-{card.lower()}", "annotations": annotations},
        "spec": {
            "schedulerName": SCHEDULER,
            "nodeSelector": {HOST: node},
            "containers": containers,
        },
    }


@asynccontextmanager
async def play_cases(cases: Iterable[Case]) -> AsyncIterator[Played]:
    """The control plane with the nodes of all cases, whose cards are held as in the cases."""
    cards: dict[str, tuple[InventoryDevice, ...]] = {}
    for case in cases:
        for node in case.cluster.nodes:
            cards[node] = ()
        for node, usage in case.cards:
            cards[node] += (inventory_device(usage.device),)
    async with system(Wanted(cards=cards, late=True, claims=True)) as bench:
        ledger = await asyncpg.connect(bench.servers.postgres)
        try:
            assert isinstance(bench.played, ClaimNodes)
            found = Played(bench=bench, nodes=bench.played, ledger=ledger)
            await found.fill(cases)
            yield found
        finally:
            await ledger.close()
