"""The same cases on our loop and on the real kube-scheduler, over the emulator and a real server.

Where the two differ, ours is wrong.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from hamicommon.errors import Unavailable
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.types import Json
from hamilocal.servers.control_plane import emulator as emulated
from hamilocal.servers.control_plane.apiserver import ApiServer
from hamilocal.servers.control_plane.assets import Assets, ControlPlane, control_plane
from hamilocal.servers.control_plane.kube_scheduler import scheduler_config
from hamilocal.servers.processes import running
from kubelocal.kubescheduler.__main__ import schedule
from kubelocal.kubescheduler.configuration import LeaderElection, read_configuration
from kubelocal.kubescheduler.leader_election import Leadership

from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.integration

PODS = "/api/v1/namespaces/default/pods"
GPU = "nvidia.com/gpu"
NO_CARD = "0/1 nodes are available: 1 no card."
TOO_LARGE = "0/1 nodes are available: 1 Insufficient cpu."
# Any event requeues what an extender refused (SchedulerQueueingHints).
ANY_EVENT_REQUEUES = (1, 32)
# The errors of a binding stand in the condition without a sentence before them.
BARE_BINDING_ERRORS = (1, 26)


class ScriptedExtender:
    """An extender whose decisions a test writes: refusals by node, and how binding goes."""

    def __init__(self, api: KubeApi) -> None:
        self.refused: dict[str, str] = {}
        self.error = ""
        self.bind_errors: list[str] = []
        self.bind_gate = asyncio.Event()
        self.bind_gate.set()
        self.filtered: list[str] = []
        self._api = api

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        if request.path == "/filter":
            self.filtered.append(body["Pod"]["metadata"]["name"])
            names = [name for name in body["NodeNames"] if name not in self.refused]
            failed = {name: self.refused[name] for name in body["NodeNames"] if name not in names}
            answer = {"NodeNames": names, "FailedNodes": failed, "Error": self.error}
            return web.json_response(answer)
        await self.bind_gate.wait()
        if self.bind_errors:
            return web.json_response({"Error": self.bind_errors.pop(0)})
        await self._api.create(
            f"{PODS}/{body['PodName']}/binding",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": body["PodName"], "uid": body["PodUID"]},
                "target": {"kind": "Node", "name": body["Node"]},
            },
        )
        return web.json_response({"Error": ""})


class World:
    """A cluster with a scheduler and an extender."""

    def __init__(self, api: KubeApi, extender: ScriptedExtender) -> None:
        self.api = api
        self.extender = extender

    async def node(self, name: str, **spec: Any) -> None:
        status = {"allocatable": {"cpu": "2", "memory": "4Gi", "pods": "10", GPU: "10"}}
        await self.api.create(
            "/api/v1/nodes", {"metadata": {"name": name}, "spec": spec, "status": status}
        )

    async def pod(self, name: str, *, cpu: str = "100m", gpu: bool = True, **spec: Any) -> None:
        limits = {"cpu": cpu} | ({GPU: "1"} if gpu else {})
        container = {"name": "main", "image": "none", "resources": {"limits": limits}}
        body = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
        await self.api.create(PODS, body)

    async def condition(self, name: str) -> Json:
        pod = await self.api.get(f"{PODS}/{name}")
        conditions = pod["status"].get("conditions") or []
        return next((one for one in conditions if one["type"] == "PodScheduled"), {})

    async def bound(self, name: str) -> str:
        async def where() -> str | None:
            return (await self.api.get(f"{PODS}/{name}"))["spec"].get("nodeName")

        return str(await eventually(where))

    async def refused(self, name: str, expected: str) -> Json:
        """Wait until the pod's condition begins with this text; that condition."""

        async def reported() -> Json | None:
            condition = await self.condition(name)
            return condition if condition.get("message", "").startswith(expected) else None

        return dict(await eventually(reported))

    async def tried(self, name: str, times: int) -> None:
        """Wait until the extender was asked about the pod so often."""

        async def often() -> bool:
            return self.extender.filtered.count(name) >= times

        await eventually(often)

    async def events(self, name: str, reason: str) -> list[Json]:
        async def found() -> list[Json]:
            events = await self.api.get("/api/v1/namespaces/default/events")
            return [
                event
                for event in events["items"]
                if event["involvedObject"]["name"] == name and event["reason"] == reason
            ]

        return list(await eventually(found))

    async def clear(self) -> None:
        for pod in (await self.api.get(PODS))["items"]:
            await self.api.delete(f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
        await self.api.delete("/api/v1/nodes")
        await self.api.delete("/api/v1/namespaces/default/events")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Which scheduler runs against which API server."""

    scheduler: str
    server: ApiServer
    plane: ControlPlane | None

    def since(self, version: tuple[int, int]) -> bool:
        """Whether this kube-scheduler is of the version at least; ours is as a new one."""
        older = self.scheduler == "real" and self.plane and self.plane.assets.version < version
        return not older


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One emulated API server for the module."""
    server = emulated.prepare(tmp_path_factory.mktemp("emulator"))
    with running(server.plan, die_with_parent=True):
        yield server


@pytest.fixture(scope="module")
def plane(
    kubernetes_assets: Assets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """One real API server for the module."""
    folder = tmp_path_factory.mktemp("plane")
    with control_plane(folder, assets=kubernetes_assets) as running_plane:
        yield running_plane


REAL = pytest.mark.e2e
KINDS = [
    "ours on the emulator",
    pytest.param("ours on a real server", marks=REAL),
    pytest.param("real on a real server", marks=REAL),
]


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every combination that must behave alike."""
    scheduler = "real" if request.param.startswith("real") else "ours"
    if "emulator" in request.param:
        return Kind(scheduler=scheduler, server=request.getfixturevalue("emulator"), plane=None)
    plane = request.getfixturevalue("plane")
    return Kind(scheduler=scheduler, server=plane.server, plane=plane)


@asynccontextmanager
async def serving(extender: ScriptedExtender) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/{verb}", extender.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        extender.bind_gate.set()
        await runner.cleanup()


@asynccontextmanager
async def our_scheduler(kind: Kind, extender: Json, folder: Path) -> AsyncIterator[None]:
    kubeconfig = kind.server.kubeconfigs["system:kube-scheduler"]
    config = scheduler_config(version=(1, 25), kubeconfig=kubeconfig, extenders=[extender])
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    task = asyncio.create_task(schedule(kubeconfig, read_configuration(path)))
    yield
    task.cancel()
    await task


@asynccontextmanager
async def real_scheduler(kind: Kind, extender: Json) -> AsyncIterator[None]:
    assert kind.plane is not None
    server = running(kind.plane.scheduler_plan([extender]), die_with_parent=False)
    await asyncio.to_thread(server.__enter__)
    yield
    await asyncio.to_thread(server.__exit__, None, None, None)


@pytest.fixture
async def world(kind: Kind, tmp_path: Path) -> AsyncIterator[World]:
    """An empty cluster with the scheduler under test."""
    async with open_kube_api(kind.server.kubeconfig) as api:
        scripted = ScriptedExtender(api)
        async with serving(scripted) as url:
            config = {
                "urlPrefix": url,
                "filterVerb": "filter",
                "bindVerb": "bind",
                "nodeCacheCapable": True,
                "httpTimeout": "5s",
                "managedResources": [{"name": GPU, "ignoredByScheduler": True}],
            }
            scheduler = (
                our_scheduler(kind, config, tmp_path)
                if kind.scheduler == "ours"
                else real_scheduler(kind, config)
            )
            async with scheduler:
                found = World(api, scripted)
                yield found
                await found.clear()


async def test_a_pod_is_bound_by_the_extender_and_an_event_reports_it(world: World) -> None:
    await world.node("a")
    await world.pod("p")
    assert await world.bound("p") == "a"
    (event,) = await world.events("p", "Scheduled")
    assert event["message"] == "Successfully assigned default/p to a"
    assert event["type"] == "Normal"


async def test_a_pod_that_is_not_the_extenders_is_bound_without_it(world: World) -> None:
    await world.node("a")
    await world.pod("p", gpu=False)
    assert await world.bound("p") == "a"
    assert world.extender.filtered == []


async def test_the_reasons_of_all_nodes_are_in_one_sentence(world: World) -> None:
    await world.node("a")
    await world.node("b")
    await world.node("c", unschedulable=True)
    world.extender.refused = {"a": "CardInsufficientMemory", "b": "CardInsufficientMemory"}
    await world.pod("p")
    sentence = "0/3 nodes are available: 1 node(s) were unschedulable, 2 CardInsufficientMemory."
    assert (await world.refused("p", sentence))["reason"] == "Unschedulable"
    events = await world.events("p", "FailedScheduling")
    assert events[-1]["type"] == "Warning"
    assert any(event["message"].startswith(sentence) for event in events)


async def test_a_pod_too_large_for_every_node_does_not_reach_the_extender(world: World) -> None:
    await world.node("a")
    await world.pod("p", cpu="3")
    await world.refused("p", TOO_LARGE)
    assert world.extender.filtered == []


async def test_a_waiting_pod_is_tried_again_when_its_annotation_is_patched(world: World) -> None:
    await world.node("a")
    world.extender.refused = {"a": "no card"}
    await world.pod("p")
    await world.refused("p", NO_CARD)
    world.extender.refused = {}
    await world.api.patch(f"{PODS}/p", {"metadata": {"annotations": {"hami.io/retry-at": "1"}}})
    assert await world.bound("p") == "a"


async def test_a_waiting_pod_is_tried_again_when_a_node_is_labelled(world: World) -> None:
    await world.node("a")
    world.extender.refused = {"a": "no card"}
    await world.pod("p")
    await world.refused("p", NO_CARD)
    world.extender.refused = {}
    await world.api.patch("/api/v1/nodes/a", {"metadata": {"labels": {"gpu": "on"}}})
    assert await world.bound("p") == "a"


async def test_a_waiting_pod_is_tried_again_when_a_placed_one_is_deleted(world: World) -> None:
    await world.node("a")
    await world.pod("first", cpu="2")
    await world.bound("first")
    await world.pod("second", cpu="2")
    await world.refused("second", TOO_LARGE)
    await world.api.delete(f"{PODS}/first", {"gracePeriodSeconds": 0})
    assert await world.bound("second") == "a"


async def test_a_pod_that_an_extender_refused_is_left_alone_while_nothing_changes(
    world: World, kind: Kind
) -> None:
    """The change of its own condition counts as an event from 1.32 on: one attempt more."""
    attempts = 2 if kind.since(ANY_EVENT_REQUEUES) else 1
    await world.node("a")
    world.extender.refused = {"a": "no card"}
    for name in ("p", "q"):
        await world.pod(name)
        await world.refused(name, NO_CARD)
        await world.tried(name, attempts)
    # q's attempts took as long as one more of p would have.
    assert world.extender.filtered.count("p") == attempts


async def test_another_pods_binding_requeues_what_an_extender_refused(
    world: World, kind: Kind
) -> None:
    """From 1.32 on; an older kube-scheduler waits for a node or for a pod that leaves one."""
    attempts = 2 if kind.since(ANY_EVENT_REQUEUES) else 1
    await world.node("a")
    world.extender.refused = {"a": "no card"}
    await world.pod("p")
    await world.refused("p", NO_CARD)
    await world.tried("p", attempts)
    world.extender.refused = {}
    await world.pod("r")
    await world.bound("r")
    if kind.since(ANY_EVENT_REQUEUES):
        assert await world.bound("p") == "a"
    else:
        assert world.extender.filtered.count("p") == attempts


async def test_another_pods_binding_requeues_nothing_that_the_filters_refused(
    world: World,
) -> None:
    await world.node("a")
    await world.pod("p", cpu="3")
    await world.refused("p", TOO_LARGE)
    await world.pod("q")
    await world.bound("q")
    await world.pod("r")
    await world.bound("r")
    (event,) = await world.events("p", "FailedScheduling")
    assert event.get("count") in (None, 0, 1)
    assert world.extender.filtered.count("p") == 0


async def test_a_pod_counts_on_its_node_while_its_binding_is_on_its_way(world: World) -> None:
    await world.node("a")
    world.extender.bind_gate.clear()
    await world.pod("first", cpu="2")
    await eventually(lambda: _soon(world.extender.filtered))
    await world.pod("second", cpu="2")
    await world.refused("second", TOO_LARGE)
    world.extender.bind_gate.set()
    assert await world.bound("first") == "a"


async def test_a_rejected_binding_is_the_pods_condition_and_the_pod_is_tried_again(
    world: World, kind: Kind
) -> None:
    before = "" if kind.since(BARE_BINDING_ERRORS) else "binding rejected: "
    await world.node("a")
    world.extender.bind_errors = ["node lock is held"]
    await world.pod("p")
    condition = await world.refused("p", before + "node lock is held")
    assert condition["reason"] == "SchedulerError"
    await world.api.patch(f"{PODS}/p", {"metadata": {"annotations": {"hami.io/retry-at": "1"}}})
    assert await world.bound("p") == "a"


async def test_an_error_of_the_extender_is_the_pods_condition(world: World) -> None:
    await world.node("a")
    world.extender.error = "the ledger is away"
    await world.pod("p")
    await world.refused("p", "the ledger is away")
    world.extender.error = ""
    await world.api.patch(f"{PODS}/p", {"metadata": {"annotations": {"hami.io/retry-at": "1"}}})
    assert await world.bound("p") == "a"


async def test_a_pod_of_another_scheduler_is_left_alone(world: World) -> None:
    await world.node("a")
    await world.pod("other", schedulerName="somebody-else")
    await world.pod("ours")
    await world.bound("ours")
    assert "other" not in world.extender.filtered


async def _soon(values: list[str]) -> list[str]:
    return values


async def test_one_of_two_leads_and_the_other_follows_when_it_is_gone(
    emulator: ApiServer,
) -> None:
    config = LeaderElection(lease_duration="5s", renew_deadline="4s", retry_period="100ms")
    group = "/apis/coordination.k8s.io/v1"
    lease = f"{group}/namespaces/kube-system/leases/kube-scheduler"
    async with open_kube_api(emulator.kubeconfig) as api:
        first, second = (Leadership(api, config, name) for name in ("first", "second"))
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())

        async def renewed_at() -> datetime:
            return datetime.fromisoformat((await api.get(lease))["spec"]["renewTime"])

        began = await renewed_at()

        async def led_longer_than_a_lease() -> bool:
            assert not waiting.done()
            return await renewed_at() > began + timedelta(seconds=5)

        await eventually(led_longer_than_a_lease)
        holding.cancel()
        last = await renewed_at()
        await asyncio.wait_for(waiting, PATIENCE_S)
        spec = (await api.get(lease))["spec"]
        assert spec["holderIdentity"] == "second"
        assert spec["leaseTransitions"] == 1
        assert datetime.fromisoformat(spec["acquireTime"]) > last + timedelta(seconds=4)
        with pytest.raises(Unavailable, match="leader election lost"):
            await first.hold()
