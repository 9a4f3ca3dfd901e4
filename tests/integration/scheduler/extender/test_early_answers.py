"""/filter answers while the reservation is written; nobody acts on it before it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from hami_scheduler.ledger.reservations import early as early_reservations
from hamicommon.k8s.types import Json

from tests.integration.scheduler.world import GIB, Replica, World
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.integration

_DROP_CONNECTIONS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'hami-scheduler'
   AND pid NOT IN ($1, pg_backend_pid())
"""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is careful after the start; a ledger that is locked is not slow."""
    monkeypatch.setattr(early_reservations, "CALM_S", 0.0)
    monkeypatch.setattr(early_reservations, "SLOW_S", PATIENCE_S)


@asynccontextmanager
async def nothing_is_written(world: World) -> AsyncIterator[int]:
    """No event of a pod can be written, so no step of any; reading goes on.
    The process of PostgreSQL that holds the lock is yielded."""
    async with world.database.transaction() as connection:
        # A writer waits as long as a lock is waited for, and begins again.
        await connection.execute("LOCK TABLE allocation_events IN EXCLUSIVE MODE")
        # However long a busy machine takes, this transaction idles, and PostgreSQL must not end it.
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield await connection.fetchval("SELECT pg_backend_pid()")


def answered_early(replica: Replica) -> float:
    """How many answers came before their reservation, and held."""
    return float(replica.service.instruments.early_answers.labels("kept")._value.get())


async def late_binding_replicas(world: World, count: int, *nodes: str) -> list[Replica]:
    """Replicas that know that these nodes bind late; each has one pod bound."""
    replicas = [await world.replica(bind_timeout_s=PATIENCE_S) for _ in range(count)]
    world.late |= set(nodes)
    for node in nodes:
        await world.add_node(node, slots=100)
        for replica in replicas:
            pod = await world.pod("first")
            assert (await replica.filter(pod, node))["NodeNames"] == [node]
            assert await replica.bind(pod, node) == ""
    return replicas


async def taken(world: World, *nodes: str) -> int:
    """Slices that the nodes' cards count."""
    return sum([(await world.used(f"GPU-{node}-0"))[0] for node in nodes])


async def waiting(replica: Replica, pod: Json, node: str) -> asyncio.Task[str]:
    """A binding that has been asked for."""
    task = asyncio.create_task(replica.bind(pod, node))
    await asyncio.sleep(0)
    return task


async def test_a_burst_is_answered_early_written_together_and_bound(world: World) -> None:
    [replica] = await late_binding_replicas(world, 1, "n1")
    before = answered_early(replica)
    pods = [await world.pod(f"p{number}") for number in range(8)]

    for pod in pods:
        assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]
    errors = await asyncio.gather(*(replica.bind(pod, "n1") for pod in pods))

    assert errors == [""] * 8
    for pod in pods:
        await world.until(pod, "bound")
    assert await taken(world, "n1") == 1 + 8
    assert answered_early(replica) == before + 8
    rows = await world.database.fetch(
        "SELECT pod_uid, array_agg(state ORDER BY sequence) AS states, max(sequence) AS last"
        " FROM allocation_events GROUP BY pod_uid"
    )
    assert len(rows) == 1 + 8
    for row in rows:
        assert row["states"][:3] == ["reserved", "binding", "bound"]
        assert row["last"] == len(row["states"])


async def test_a_binding_is_answered_only_when_the_reservation_is_committed(world: World) -> None:
    [replica] = await late_binding_replicas(world, 1, "n1")
    pod = await world.pod("slice")
    world.asked.clear()

    async with nothing_is_written(world):
        answer = await asyncio.wait_for(replica.filter(pod, "n1"), PATIENCE_S)
        assert answer["NodeNames"] == ["n1"]
        assert await world.rows(pod) == []
        binding = await waiting(replica, pod, "n1")
        assert "n1" not in world.asked
        assert "nodeName" not in (await world.read(pod))["spec"]

    error = await binding
    if error:
        # The lock was held for longer than one is waited for: kube-scheduler asks again.
        assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]
        assert await replica.bind(pod, "n1") == ""
    await world.until(pod, "bound")
    assert len([row for row in await world.rows(pod) if row["state"] == "bound"]) == 1


async def test_another_replica_binds_a_pod_whose_reservation_is_on_its_way(world: World) -> None:
    one, other = await late_binding_replicas(world, 2, "n1")
    pods = [await world.pod(f"p{number}") for number in range(6)]

    async def through_both(pod: Json) -> str:
        assert (await one.filter(pod, "n1"))["NodeNames"] == ["n1"]
        return await other.bind(pod, "n1")

    assert [await through_both(pod) for pod in pods] == [""] * 6
    for pod in pods:
        await world.until(pod, "bound")
        live = [row for row in await world.rows(pod) if row["state"] == "bound"]
        assert len(live) == 1
    assert await taken(world, "n1") == 2 + 6


async def test_two_replicas_with_one_pod_in_two_batches_write_it_once(world: World) -> None:
    replicas = await late_binding_replicas(world, 2, "n1", "n2")
    pods = [await world.pod(f"p{number}") for number in range(6)]

    async def decided(replica: Replica, pod: Json) -> tuple[str, str]:
        [node] = (await replica.filter(pod, "n1", "n2"))["NodeNames"]
        return node, await replica.bind(pod, node)

    both = [(replica, pod) for pod in pods for replica in replicas]
    answers = await asyncio.gather(*(decided(replica, pod) for replica, pod in both))

    for number, pod in enumerate(pods):
        assert "" in [error for _, error in answers[2 * number : 2 * number + 2]], answers
        row = await world.until(pod, "bound")
        assert (await world.read(pod))["spec"]["nodeName"] == row["node"]
        live = [each for each in await world.rows(pod) if each["state"] in ("binding", "bound")]
        assert len(live) == 1
    assert await taken(world, "n1", "n2") == 4 + len(pods)


async def test_a_full_batch_and_no_postgres_grants_nothing_and_each_pod_is_tried_again(
    world: World,
) -> None:
    [replica] = await late_binding_replicas(world, 1, "n1")
    pods = [await world.pod(f"p{number}", memory_mib=64) for number in range(24)]
    async with nothing_is_written(world) as lock_holder:
        for pod in pods:
            assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]
        bindings = [await waiting(replica, pod, "n1") for pod in pods]
        # The lock is held beyond them: who waits for it as its connection ends has written nothing.
        await world.database.fetch(_DROP_CONNECTIONS, lock_holder)
        errors = await asyncio.gather(*bindings)
        assert all(errors), errors
        assert [await world.rows(pod) for pod in pods] == [[]] * len(pods)

    async def bound(pod: Json) -> bool:
        answer = await replica.filter(pod, "n1")
        return bool(answer["NodeNames"]) and await replica.bind(pod, "n1") == ""

    for pod in pods:
        await eventually(partial(bound, pod), "the pod to be bound")
    assert await taken(world, "n1") == 1 + len(pods)


@pytest.mark.parametrize("slow_s", [PATIENCE_S, 0.002])
async def test_a_node_that_fills_up_breaks_no_answer(
    world: World, monkeypatch: pytest.MonkeyPatch, slow_s: float
) -> None:
    """With the short time some answers wait for their own commit, beside those that do not."""
    monkeypatch.setattr(early_reservations, "SLOW_S", slow_s)
    [replica] = await late_binding_replicas(world, 1, "n1")
    await world.add_node("n2", cards=4, slots=10)
    pods = [await world.pod(f"p{number}", memory_mib=4 * GIB, cores=5) for number in range(60)]
    waiting_pods = iter(pods)
    placed = 0

    async def client() -> None:
        nonlocal placed
        for pod in waiting_pods:
            answer = await replica.filter(pod, "n2")
            assert not answer["Error"], answer
            placed += len(answer["NodeNames"] or ())

    await asyncio.gather(*(client() for _ in range(8)))

    broken = replica.service.instruments.early_answers.labels("broken")._value.get()
    assert (placed, broken) == (40, 0)
    used = [await world.used(f"GPU-n2-{index}") for index in range(4)]
    assert [slots for slots, _, _ in used] == [10] * 4
