"""Several replicas at once, and each backend away: slower or refused, never wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hami_scheduler.adapters.kubernetes import KubernetesPodApi
from hami_scheduler.aside import Aside
from hamicommon import events
from hamicommon.errors import Unavailable
from pydantic import SecretStr

from tests.integration.scheduler.conftest import GIB, World, eventually

pytestmark = pytest.mark.integration

NOBODY_LISTENS = "127.0.0.1:1"


async def test_two_replicas_give_the_last_slot_once(world: World) -> None:
    replicas = [await world.replica(), await world.replica()]
    [card] = await world.add_node("n1", slots=1)
    pods = [await world.pod(f"p{n}") for n in range(6)]

    answers = await asyncio.gather(
        *(replicas[n % 2].filter(pod, "n1") for n, pod in enumerate(pods))
    )

    placed = [answer for answer in answers if answer["NodeNames"]]
    refused = [answer["FailedNodes"] for answer in answers if not answer["NodeNames"]]
    assert len(placed) == 1
    assert refused == [{"n1": "1/1 CardTimeSlicingExhausted"}] * 5, answers
    assert await world.used(card) == (1, 1024, 0)


async def test_a_burst_over_two_replicas_never_overcommits(world: World) -> None:
    replicas = [await world.replica(), await world.replica()]
    cards = await world.add_node("n1", cards=4, memory_mib=4096, slots=10)
    pods = [await world.pod(f"p{n}", memory_mib=1024, cores=5) for n in range(24)]

    answers = await asyncio.gather(
        *(replicas[n % 2].filter(pod, "n1") for n, pod in enumerate(pods))
    )

    assert all(answer["Error"] == "" or "tried again" in answer["Error"] for answer in answers)
    placed = sum(bool(answer["NodeNames"]) for answer in answers)
    used = [await world.used(card) for card in cards]
    assert placed <= 16
    assert sum(memory for _, memory, _ in used) == placed * 1024
    assert all(memory <= 4096 for _, memory, _ in used)
    # Who lost too many races comes again, as kube-scheduler does, and gets what is left.
    for pod, answer in zip(pods, answers, strict=True):
        if answer["Error"]:
            await replicas[0].filter(pod, "n1")
    rows = await world.database.fetch("SELECT 1 FROM allocations WHERE ended_at IS NULL")
    assert len(rows) == 16


async def test_what_one_replica_reserved_the_other_binds(world: World) -> None:
    first, second = await world.replica(), await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")

    await first.filter(pod, "n1")

    assert await second.bind(pod, "n1") == ""


async def test_two_replicas_that_bind_the_same_pod_do_it_once(world: World) -> None:
    first, second = await world.replica(), await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.pod("slice")
    await first.filter(pod, "n1")

    errors = await asyncio.gather(first.bind(pod, "n1"), second.bind(pod, "n1"))

    assert "" in errors
    await world.until(pod, "bound")
    assert (await world.used(card))[0] == 1
    assert (await world.read(pod))["spec"]["nodeName"] == "n1"


async def test_a_release_by_one_replica_is_known_to_the_other(world: World) -> None:
    first = await world.replica()
    second = await world.replica(reconcile_s=60.0)
    await world.add_node("n1", slots=1)
    holder, waiter = await world.pod("a"), await world.pod("b")
    held = await second.filter(holder, "n1")
    assert held["NodeNames"] == ["n1"], held
    refused = await first.filter(waiter, "n1")
    assert not refused["NodeNames"], await world.rows(holder)

    await world.delete(holder)
    await world.until(holder, "released")

    assert (await second.filter(waiter, "n1"))["NodeNames"] == ["n1"]


async def test_a_lost_answer_to_the_binding_is_read_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")
    really_bind = KubernetesPodApi.bind

    async def bind(self: KubernetesPodApi, *args: str, **kwargs: str) -> None:
        await really_bind(self, *args, **kwargs)  # type: ignore[arg-type]
        raise Unavailable("no answer within 10 s")

    monkeypatch.setattr(KubernetesPodApi, "bind", bind)

    assert await replica.bind(pod, "n1") == ""
    await world.until(pod, "bound")


async def test_a_binding_that_never_arrived_gives_everything_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")

    async def bind(self: KubernetesPodApi, *args: str, **kwargs: str) -> None:
        raise Unavailable("connection refused")

    monkeypatch.setattr(KubernetesPodApi, "bind", bind)

    assert "connection refused" in await replica.bind(pod, "n1")
    await world.until(pod, "failed")
    assert await world.used(card) == (0, 0, 0)


async def test_a_binder_that_dies_half_way_is_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await world.replica(), await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")
    await first.filter(pod, "n1")
    never, reached = asyncio.Event(), asyncio.Event()
    really_bind = KubernetesPodApi.bind

    async def hang(self: KubernetesPodApi, *args: str, **kwargs: str) -> None:
        reached.set()
        await never.wait()

    monkeypatch.setattr(KubernetesPodApi, "bind", hang)
    dying = asyncio.create_task(first.bind(pod, "n1"))
    await world.until(pod, "binding")

    async with asyncio.timeout(60):
        await reached.wait()  # the lock and the grant on the bus are its
    dying.cancel()
    monkeypatch.setattr(KubernetesPodApi, "bind", really_bind)

    assert await second.bind(pod, "n1") == ""
    await world.until(pod, "bound")


async def test_a_pod_that_the_slow_binder_bound_meanwhile_is_bound_for_the_one_that_took_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await world.replica(), await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")
    await first.filter(pod, "n1")
    sent, slow = asyncio.Event(), asyncio.Event()
    really_bind = KubernetesPodApi.bind
    grants: list[str] = []

    async def bind(self: KubernetesPodApi, *args: Any, **kwargs: Any) -> None:
        grants.append(kwargs["annotations"]["hami.io/grant"])
        if len(grants) == 1:
            sent.set()
            await slow.wait()
        else:
            slow.set()
            await world.until(pod, "bound")
        await really_bind(self, *args, **kwargs)

    monkeypatch.setattr(KubernetesPodApi, "bind", bind)
    binding = asyncio.create_task(first.bind(pod, "n1"))
    await sent.wait()

    assert await second.bind(pod, "n1") == ""
    assert await binding == ""
    await world.until(pod, "bound")
    # The token of the first counts no more, so neither does the grant that came with its binding.
    assert (await world.read(pod))["metadata"]["annotations"]["hami.io/grant"] == grants[1]


async def test_an_assumed_pod_gets_no_label_before_it_is_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # kube-scheduler would schedule it once more, and fail.
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")
    really_bind = KubernetesPodApi.bind
    before: list[Any] = []

    async def bind(self: KubernetesPodApi, *args: Any, **kwargs: Any) -> None:
        before.append((await world.read(pod))["metadata"].get("labels"))
        await really_bind(self, *args, **kwargs)

    monkeypatch.setattr(KubernetesPodApi, "bind", bind)

    assert await replica.bind(pod, "n1") == ""
    assert before == [None]
    await world.until_labelled(pod, "n1")


async def test_a_label_that_its_binder_took_along_is_written_by_the_next_comparisons(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Aside, "put", lambda aside, work: False)
    replica = await world.replica(reconcile_s=0.2)
    await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")
    assert await replica.bind(pod, "n1") == ""

    await world.until_labelled(pod, "n1")


async def test_an_answer_that_a_stranger_took_does_not_end_the_binding(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")
    really_bind, really_get = KubernetesPodApi.bind, KubernetesPodApi.get
    asked = asyncio.Event()

    async def get(self: KubernetesPodApi, *args: Any) -> Any:
        asked.set()
        return await really_get(self, *args)

    async def bind_after_the_report(self: KubernetesPodApi, *args: Any, **kwargs: Any) -> None:
        # A pod past the scheduler came to Allocate first, and the agent took it for ours.
        monkeypatch.setattr(KubernetesPodApi, "get", get)
        await world.say(events.Allocated, await world.until(pod, "binding"))
        await asyncio.wait_for(asked.wait(), 60)
        await really_bind(self, *args, **kwargs)

    monkeypatch.setattr(KubernetesPodApi, "bind", bind_after_the_report)

    assert await replica.bind(pod, "n1") == ""
    assert (await world.read(pod))["spec"]["nodeName"] == "n1"
    await world.until(pod, "allocated")


async def test_a_pod_that_only_the_ledger_calls_bound_is_bound_when_it_comes_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")
    await replica.filter(pod, "n1")

    async def bind_nothing(self: KubernetesPodApi, *args: Any, **kwargs: Any) -> None:
        del self, args, kwargs

    with monkeypatch.context() as patched:
        patched.setattr(KubernetesPodApi, "bind", bind_nothing)
        assert await replica.bind(pod, "n1") == ""
    await world.until(pod, "bound")

    assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]
    assert await replica.bind(pod, "n1") == ""
    assert (await world.read(pod))["spec"]["nodeName"] == "n1"


async def test_without_redis_pods_are_bound_all_the_same(world: World) -> None:
    replica = await world.replica(
        redis=world.settings.redis.model_copy(
            update={"url": SecretStr(f"redis://{NOBODY_LISTENS}/0")}
        )
    )
    await world.add_node("n1")
    first, second = await world.pod("a"), await world.pod("b")
    for pod in (first, second):
        await replica.filter(pod, "n1")

    assert await replica.bind(first, "n1") == ""
    waiting = asyncio.create_task(replica.bind(second, "n1"))
    await world.until(second, "binding")
    await world.say(events.Allocated, await world.until(first, "bound"))
    assert await waiting == ""


async def test_without_nats_pods_are_bound_and_the_facts_wait(world: World) -> None:
    running = await world.replica()
    await world.add_node("n1")
    replica = await world.replica(
        nats=world.settings.nats.model_copy(
            update={"url": f"nats://{NOBODY_LISTENS}", "connect_timeout_s": 1.0}
        )
    )
    pod = await world.pod("slice")

    await replica.filter(pod, "n1")
    assert await replica.bind(pod, "n1") == ""

    assert "hami.io/grant" in (await world.read(pod))["metadata"]["annotations"]

    async def all_told() -> bool:
        rows = await world.database.fetch("SELECT 1 FROM outbox WHERE published_at IS NULL")
        return not rows

    await eventually(all_told, "the replica that has the bus to tell it")
    assert running is not replica


async def test_without_postgres_filter_says_so_and_recovers(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("slice")
    name = (await world.database.fetchrow("SELECT current_database()"))[0]
    # As when the server goes: connections end, and new ones are refused.
    dsn = world.settings.postgres.dsn.get_secret_value()
    import asyncpg

    admin = await asyncpg.connect(dsn.rsplit("/", 1)[0] + "/postgres")
    try:
        await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name
        )
        answer = await replica.filter(pod, "n1")
        assert answer["NodeNames"] is None
        assert answer["Error"].startswith("Postgres is not available")
        assert (await replica.http.get("/readyz")).status_code == 503
        assert (await replica.http.get("/v1/nodes")).status_code == 503
        await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    finally:
        await admin.close()

    assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]


async def test_a_broken_inventory_hurts_nobody(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    from pydantic import BaseModel

    class Nonsense(BaseModel):
        node: str = "n1"
        version: int = 7

    await world.bus.publish(events.inventory_subject("n1"), Nonsense(), message_id="nonsense")
    await world.add_node("n2")
    pod = await world.pod("slice")

    assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]
    letter = (await replica.get("/v1/dead-letters?limit=1"))["items"][0]
    assert letter["subject"] == events.inventory_subject("n1")
    assert "version is 7, and this release reads 1" in letter["reason"]
    assert "hami_scheduler_dead_letters_kept" in (await replica.http.get("/metrics")).text
    path = f"/v1/dead-letters/{letter['sequence']}/send"
    assert (await replica.http.post(path)).status_code == 200
    assert (await replica.http.post(path)).status_code == 404


async def test_a_card_that_two_nodes_claim_stays_where_it_was(world: World) -> None:
    from tests.integration.scheduler.conftest import inventory_device

    replica = await world.replica()
    [card] = await world.add_node("n1")

    await world.report("n2", inventory_device(card, 0))
    await world.add_node("n3")

    [device] = [d for d in (await replica.get("/v1/devices"))["items"] if d["uuid"] == card]
    assert device["node"] == "n1"


async def test_rows_of_pods_that_vanished_unseen_are_found_by_the_reconciler(
    world: World,
) -> None:
    first = await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.pod("slice")
    ghost = {**pod, "metadata": {**pod["metadata"], "name": "ghost", "uid": "gone-long-ago"}}
    await first.filter(ghost, "n1")

    assert (await world.until(ghost, "released"))["reason"] == "pod deleted"
    assert await world.used(card) == (0, 0, 0)
    rows = await world.database.fetch('SELECT "class", repaired FROM drift_journal')
    assert ("reserved-pod-gone", True) in [tuple(row) for row in rows]
    [line] = (await first.get("/v1/drift?class=reserved-pod-gone&limit=1"))["items"]
    assert "reserved -> released on n1" in line["detail"]


async def test_a_pod_bound_past_us_is_told_what_to_do(world: World) -> None:
    await world.replica()
    await world.add_node("n1")
    pod = await world.pod("static")
    await world.api.create(
        f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/binding",
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod["metadata"]["name"]},
            "target": {"kind": "Node", "name": "n1"},
        },
    )

    async def told() -> bool:
        items = (await world.api.get("/api/v1/namespaces/default/events"))["items"]
        return any(
            e["reason"] == "UnmanagedPod" and e["involvedObject"]["uid"] == pod["metadata"]["uid"]
            for e in items
        )

    await eventually(told, "the event on the pod")


async def test_binds_that_wait_for_a_node_hold_no_connection_to_the_ledger(world: World) -> None:
    narrow = world.settings.postgres.model_copy(update={"pool_max": 2})
    replica = await world.replica(postgres=narrow, bind_timeout_s=25.0)
    await world.add_node("n1", slots=20)
    await world.add_node("n2")
    pods = [await world.pod(f"p{number}") for number in range(6)]
    for pod in pods:
        await replica.filter(pod, "n1")
    binding = [asyncio.create_task(replica.bind(pod, "n1")) for pod in pods]
    for pod in pods:
        await world.until(pod, "binding", "bound")

    other = await world.pod("other")
    assert (await replica.filter(other, "n2"))["NodeNames"] == ["n2"]
    assert await replica.bind(other, "n2") == ""
    assert sum(task.done() for task in binding) <= 1, "nobody waited meanwhile"

    while binding:
        for row in [(await world.rows(pod))[-1] for pod in pods]:
            if row["state"] == "bound":
                await world.say(events.Allocated, row)
        done, waiting = await asyncio.wait(binding, timeout=0.2)
        assert {task.result() for task in done} <= {""}
        binding = list(waiting)


async def test_with_grants_made_at_bind_filter_offers_all_that_fit(world: World) -> None:
    replica = await world.replica(allocate_at="bind")
    [card] = await world.add_node("n1", slots=1)
    await world.add_node("n2")
    await world.add_node("tiny", memory_mib=GIB // 2)
    first, second = await world.pod("first"), await world.pod("second")

    for pod in (first, second):
        answer = await replica.filter(pod, "n1", "n2", "tiny")
        assert sorted(answer["NodeNames"]) == ["n1", "n2"]
        assert answer["FailedNodes"] == {"tiny": "1/1 CardInsufficientMemory"}
        assert await world.rows(pod) == []
    args = {"pod": first, "nodenames": ["n1", "n2"]}
    scores = (await replica.http.post("/prioritize", json=args)).json()
    assert sorted(one["Host"] for one in scores) == ["n1", "n2"]

    assert await replica.bind(first, "n1") == ""
    # kube-scheduler chose the same node for both; the ledger has room for one.
    assert "1/1 CardTimeSlicingExhausted" in await replica.bind(second, "n1")
    assert (await world.used(card))[0] == 1
    assert (await replica.filter(second, "n1", "n2"))["NodeNames"] == ["n2"]
    assert await replica.bind(second, "n2") == ""
