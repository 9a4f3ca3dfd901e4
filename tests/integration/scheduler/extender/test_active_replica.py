"""One replica is active, by kube-scheduler's Lease; the others stand by until it moves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from hami_scheduler import activity
from hami_scheduler.api.app import create_app
from hami_scheduler.bootstrap.loops import running
from hami_scheduler.bootstrap.use_cases import open_service
from hamicommon import events
from hamicommon.errors import Unavailable
from hamicommon.k8s.types import Json
from hamicommon.process.shutdown import end

from tests.integration.scheduler.world import Replica, World
from tests.leader_election import LeaderElection, Leadership
from tests.unit.hamicommon.simulation.objects import node
from tests.waiting import PATIENCE_S, eventually

LEASE_S = 3.0
ELECTION = LeaderElection.model_validate(
    {
        "resource_name": "hami-scheduler",
        "resource_namespace": "default",
        "lease_duration": f"{LEASE_S}s",
        "renew_deadline": "2s",
        "retry_period": "200ms",
    }
)
LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/hami-scheduler"


@dataclass
class Pod:
    """kube-scheduler and our replica, as containers of one pod."""

    name: str
    replica: Replica
    life: asyncio.Task[None]
    """The replica's; it ends as its process would."""
    leading: asyncio.Task[None] | None = None
    number: int = field(default=0)

    def elect(self, world: World) -> None:
        """Start its kube-scheduler, which takes the Lease when it may."""
        self.number += 1
        leadership = Leadership(world.api, ELECTION, f"{self.name}_{self.number}")

        async def lead() -> None:
            await leadership.acquire()
            await leadership.hold()

        self.leading = asyncio.create_task(lead())

    async def kill_kube_scheduler(self) -> None:
        """SIGKILL: the Lease stays in its name."""
        assert self.leading is not None
        await end([self.leading])

    @property
    def is_active(self) -> bool:
        return self.replica.service.activity.is_active


@asynccontextmanager
async def pod(world: World, name: str, **changes: Any) -> AsyncIterator[Pod]:
    """One that is ready; it may stand by."""
    own = {"pod_name": name, "lease_name": "hami-scheduler", "lease_namespace": "default"}
    settings = world.settings.model_copy(update={**own, "kube_scheduler": "", **changes})
    opened: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()

    async def live() -> None:
        async with AsyncExitStack() as stack:
            service = await stack.enter_async_context(open_service(settings))
            await stack.enter_async_context(running(service.loops))
            http = httpx.AsyncClient(
                transport=httpx.ASGITransport(app=create_app(service, probes=True)),
                base_url="http://scheduler",
                timeout=PATIENCE_S,
            )
            await stack.enter_async_context(http)
            opened.set_result(Replica(service, http))
            await asyncio.Event().wait()

    life = asyncio.create_task(live())
    made = Pod(name, await opened, life)
    world.replicas.append(made.replica)

    async def ready() -> bool:
        return (await made.replica.http.get("/readyz")).status_code == 200

    await eventually(ready, f"{name} to be ready")
    try:
        yield made
    finally:
        if made.replica in world.replicas:
            world.replicas.remove(made.replica)
        await end([task for task in (life, made.leading) if task is not None])


@pytest.fixture(autouse=True)
async def _no_lease(world: World) -> AsyncIterator[None]:
    yield
    await world.api.delete(LEASE)


async def until(holds: Callable[[], bool], what: str) -> None:

    await eventually(holds, what)


async def release_lease(world: World) -> None:
    """Release the lease as an ending kube-scheduler does."""
    lease = await world.api.get(LEASE)
    kept = {"leaseTransitions": lease["spec"]["leaseTransitions"], "leaseDurationSeconds": 1}
    await world.api.replace(LEASE, {**lease, "spec": kept})


async def wait_for_end(world: World, pod: Pod) -> str:
    """The reason its process ends with."""
    world.replicas.remove(pod.replica)
    with pytest.raises(Unavailable) as ended:
        async with asyncio.timeout(PATIENCE_S):
            await pod.life
    return str(ended.value)


async def test_the_lease_moves_and_the_other_replica_answers_with_what_the_ledger_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pod(world, "pod-a") as first, pod(world, "pod-b") as second:
        first.elect(world)
        await until(lambda: first.is_active, "the first replica to be active")
        monkeypatch.setattr(activity, "ACTIVATION_TIMEOUT_S", 0.05)
        await world.add_node("n1", slots=1)
        held, waiting = await world.pod("held"), await world.pod("waiting")

        refused = await second.replica.filter(held, "n1")
        assert (
            refused["Error"]
            == "this replica is on standby: pod-a holds the Lease default/hami-scheduler"
        )
        assert await second.replica.bind(held, "n1") == refused["Error"]
        template = {"pod": held, "nodes": {"items": [node("template", {})]}}
        simulated = await second.replica.http.post("/filter-simulation", json=template)
        assert simulated.json()["Nodes"]["items"] == template["nodes"]["items"]
        assert await world.rows(held) == []
        assert (await first.replica.filter(held, "n1"))["NodeNames"] == ["n1"]
        assert await first.replica.bind(held, "n1") == ""
        [seen] = (await second.replica.get("/v1/allocations"))["items"]
        assert seen["pod_uid"] == held["metadata"]["uid"]
        adopting = await second.replica.http.post("/v1/adopt", json={})
        assert (adopting.status_code, adopting.json()["error"]) == (503, refused["Error"])
        assert "hami_scheduler_active 0.0" in (await second.replica.http.get("/metrics")).text

        await first.kill_kube_scheduler()
        await release_lease(world)
        assert await wait_for_end(world, first) == (
            "not active any more: no pod holds the Lease default/hami-scheduler"
        )
        second.elect(world)
        monkeypatch.undo()
        answer = await second.replica.filter(waiting, "n1")
        assert answer["FailedNodes"] == {"n1": "1/1 CardTimeSlicingExhausted"}, answer
        assert "hami_scheduler_active 1.0" in (await second.replica.http.get("/metrics")).text
        await world.delete(held)
        await world.publish_report(events.PodGone, (await world.rows(held))[0])
        await world.until(held, "released")
        assert (await second.replica.filter(waiting, "n1"))["NodeNames"] == ["n1"]


async def test_who_becomes_active_finds_what_happened_while_nobody_was(world: World) -> None:
    async with pod(world, "pod-a") as first, pod(world, "pod-b") as second:
        first.elect(world)
        await until(lambda: first.is_active, "the first replica to be active")
        await world.add_node("n1")
        bound = await world.pod("bound")
        assert (await first.replica.filter(bound, "n1"))["NodeNames"] == ["n1"]
        assert await first.replica.bind(bound, "n1") == ""

        await end([first.life])
        world.replicas.remove(first.replica)
        await first.kill_kube_scheduler()
        second.elect(world)
        await world.set_status(bound, phase="Succeeded")
        assert not second.is_active

        # Its Lease expires, as it is not released.
        await until(lambda: second.is_active, "the second replica to be active")
        await world.until(bound, "released")


async def test_the_lease_of_a_kube_scheduler_that_died_is_released_for_it(world: World) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with pod(world, "pod-a", kube_scheduler=address) as first, pod(world, "pod-b") as second:
        first.elect(world)
        await until(lambda: first.is_active, "the first replica to be active")
        second.elect(world)
        await first.kill_kube_scheduler()
        killed_s = asyncio.get_running_loop().time()
        server.close()
        await server.wait_closed()

        await until(lambda: second.is_active, "the second replica to be active")

        assert asyncio.get_running_loop().time() - killed_s < LEASE_S
        assert "no pod holds the Lease" in await wait_for_end(world, first)


async def test_a_kube_scheduler_that_hangs_keeps_its_lease_until_it_expires(world: World) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, pod(world, "pod-a", kube_scheduler=address) as first:
        first.elect(world)
        await until(lambda: first.is_active, "the replica to be active")
        await first.kill_kube_scheduler()

        reason = await wait_for_end(world, first)

    assert reason == "not active any more: pod-a has not renewed the Lease default/hami-scheduler"
    lease: Json = await world.api.get(LEASE)
    assert lease["spec"]["holderIdentity"] == "pod-a_1"


async def test_one_that_is_to_hold_on_compares_before_it_answers(world: World) -> None:
    async with pod(world, "pod-a", hold_s=PATIENCE_S) as first:
        first.elect(world)
        await world.add_node("n1")

        answer = await first.replica.filter(await world.pod("early"), "n1")

        reason = (
            "this replica has just become active and is still reading the ledger; the pod "
            "will be retried"
        )
        assert answer["Error"] == reason
