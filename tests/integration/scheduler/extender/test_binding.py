"""/bind when answers are lost, binders die and pods that bypassed the scheduler interfere."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hami_scheduler.adapters.kubernetes import KubernetesPodApi
from hami_scheduler.background_queue import BackgroundQueue
from hami_scheduler.extender import bind as bind_module
from hami_scheduler.extender.bind_steps import AgentOffers
from hamicommon import events
from hamicommon.bus.client import Deliver, Message, Subscription
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Unavailable
from hamicommon.grants.grant import Grant
from hamicommon.k8s.types import Json

from tests.integration.scheduler.world import Replica, World
from tests.waiting import PATIENCE_S, eventually


async def replica_with_pod(world: World, **settings: Any) -> tuple[Replica, Json]:
    """A replica with these settings, and a pod that it holds a card of n1 for."""
    replica, _ = await world.replica_with_card(**settings)
    return replica, await world.reserved_pod(replica)


async def test_a_lost_answer_to_the_binding_is_read_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, pod = await replica_with_pod(world)
    really_bind = KubernetesPodApi.bind

    async def bind(self: KubernetesPodApi, *args: str, **kwargs: str) -> None:
        await really_bind(self, *args, **kwargs)
        raise Unavailable("no answer within 10 s")

    monkeypatch.setattr(KubernetesPodApi, "bind", bind)

    assert await replica.bind(pod, "n1") == ""
    await world.until(pod, "bound")


async def test_a_binding_that_never_arrived_gives_everything_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, card = await world.replica_with_card()
    pod = await world.reserved_pod(replica)

    async def bind(self: KubernetesPodApi, *args: str, **kwargs: str) -> None:
        raise Unavailable("connection refused")

    monkeypatch.setattr(KubernetesPodApi, "bind", bind)

    assert "connection refused" in await replica.bind(pod, "n1")
    await world.until(pod, "failed")
    assert await world.used_amounts(card) == (0, 0, 0)


async def test_an_assumed_pod_gets_no_label_before_it_is_bound(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # kube-scheduler would schedule it once more, and fail.
    replica, pod = await replica_with_pod(world, label=True)
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
    monkeypatch.setattr(BackgroundQueue, "put", lambda background, work: False)
    replica, pod = await replica_with_pod(world, reconcile_s=0.2, label=True)
    assert await replica.bind(pod, "n1") == ""

    await world.until_labelled(pod, "n1")


async def test_a_pod_with_our_agent_gets_neither_label_nor_normal_events(world: World) -> None:
    replica, pod = await replica_with_pod(world)
    assert await replica.bind(pod, "n1") == ""
    await world.publish_report(events.Allocated, await world.until(pod, "bound"))
    await world.until(pod, "allocated")

    await eventually(_nothing_waiting(replica), "background work")
    assert "labels" not in (await world.read(pod))["metadata"]
    assert await _events_of(world, pod) == []


async def test_with_all_events_a_pod_shows_what_hami_shows(world: World) -> None:
    replica, pod = await replica_with_pod(world, events="all")
    assert await replica.bind(pod, "n1") == ""

    async def has_both_events() -> bool:
        return await _events_of(world, pod) == ["BindingSucceed", "FilteringSucceed"]

    await eventually(has_both_events, "both events")


def _nothing_waiting(replica: Replica) -> Callable[[], Awaitable[bool]]:
    async def empty() -> bool:
        return replica.service.verbs.background.waiting == 0

    return empty


async def _events_of(world: World, pod: Json) -> list[str]:
    found = await world.api.get("/api/v1/namespaces/default/events")
    uid = pod["metadata"]["uid"]
    return sorted(e["reason"] for e in found["items"] if e["involvedObject"].get("uid") == uid)


async def test_an_allocate_of_an_unscheduled_pod_does_not_end_the_binding(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, pod = await replica_with_pod(world)
    really_bind, really_get = KubernetesPodApi.bind, KubernetesPodApi.get
    asked = asyncio.Event()

    async def get(self: KubernetesPodApi, *args: Any) -> Any:
        asked.set()
        return await really_get(self, *args)

    async def bind_after_the_report(self: KubernetesPodApi, *args: Any, **kwargs: Any) -> None:
        # Allocate came for a pod that bypassed the scheduler, and the agent took it for ours.
        monkeypatch.setattr(KubernetesPodApi, "get", get)
        await world.publish_report(events.Allocated, await world.until(pod, "binding"))
        await asyncio.wait_for(asked.wait(), PATIENCE_S)
        await really_bind(self, *args, **kwargs)

    monkeypatch.setattr(KubernetesPodApi, "bind", bind_after_the_report)

    assert await replica.bind(pod, "n1") == ""
    assert (await world.read(pod))["spec"]["nodeName"] == "n1"
    await world.until(pod, "allocated")


async def test_a_pod_that_only_the_ledger_calls_bound_is_bound_when_it_comes_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, pod = await replica_with_pod(world)

    async def bind_nothing(self: KubernetesPodApi, *args: Any, **kwargs: Any) -> None:
        del self, args, kwargs

    with monkeypatch.context() as patched:
        patched.setattr(KubernetesPodApi, "bind", bind_nothing)
        assert await replica.bind(pod, "n1") == ""
    await world.until(pod, "bound")

    assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]
    assert await replica.bind(pod, "n1") == ""
    assert (await world.read(pod))["spec"]["nodeName"] == "n1"


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
    assert sum(task.done() for task in binding) <= 1, "no bind waited for the node"

    while binding:
        for row in [(await world.rows(pod))[-1] for pod in pods]:
            if row["state"] == "bound":
                await world.publish_report(events.Allocated, row)
        done, waiting = await asyncio.wait(binding, timeout=0.2)
        assert {task.result() for task in done} <= {""}
        binding = list(waiting)


NO_CARDS = [
    pytest.param({"nvidia.com/gpu": "0", "nvidia.com/gpucores": "100"}, id="0 with a default"),
    pytest.param({"nvidia.com/gpu": "0", "nvidia.com/gpumem": "4000"}, id="memory of 0 cards"),
    pytest.param({"nvidia.com/priority": "1"}, id="a priority alone"),
    pytest.param({"hygon.com/dcunum": "0"}, id="0 of another vendor"),
]


@pytest.mark.parametrize("limits", NO_CARDS)
async def test_a_pod_that_asks_for_no_card_is_bound_plainly(world: World, limits: Json) -> None:
    replica, _ = await world.replica_with_card()
    pod = await world.pod("zero", limits=limits)

    assert (await replica.filter(pod, "n1", "n2"))["NodeNames"] == ["n1", "n2"]
    assert await replica.bind(pod, "n1") == ""
    assert await replica.bind(pod, "n1") == "", "an answer that was lost is asked for again"

    bound = await world.read(pod)
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"].get("annotations") is None
    assert await world.rows(pod) == []
    [condition] = [c for c in bound["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert condition["status"] == "True"


async def test_a_pod_without_cards_that_was_created_again_is_not_bound(world: World) -> None:
    replica = await world.replica()
    pod = await world.pod("zero", limits={"nvidia.com/gpu": "0"})
    another = {**pod, "metadata": {**pod["metadata"], "uid": "of-another"}}

    assert "gone" in await replica.bind(another, "n1")
    assert "nodeName" not in (await world.read(pod))["spec"]


async def test_a_pod_without_cards_that_is_elsewhere_is_an_error(world: World) -> None:
    replica = await world.replica()
    pod = await world.pod("zero", limits={"nvidia.com/gpu": "0"})
    assert await replica.bind(pod, "n1") == ""

    assert await replica.bind(pod, "n2") != ""
    assert (await world.read(pod))["spec"]["nodeName"] == "n1"


async def test_a_binder_that_dies_half_way_is_taken_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await world.replica(), await world.replica()
    await world.add_node("n1")
    pod = await world.reserved_pod(first)
    never, reached = asyncio.Event(), asyncio.Event()
    really_bind = KubernetesPodApi.bind

    async def hang(self: KubernetesPodApi, *args: str, **kwargs: str) -> None:
        reached.set()
        await never.wait()

    monkeypatch.setattr(KubernetesPodApi, "bind", hang)
    dying = asyncio.create_task(first.bind(pod, "n1"))
    await world.until(pod, "binding")

    async with asyncio.timeout(PATIENCE_S):
        await reached.wait()  # the lock and the grant on the bus are its
    dying.cancel()
    monkeypatch.setattr(KubernetesPodApi, "bind", really_bind)

    assert await second.bind(pod, "n1") == ""
    await world.until(pod, "bound")


async def test_a_pod_that_the_slow_binder_bound_first_is_bound_for_the_one_that_took_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await world.replica(), await world.replica()
    await world.add_node("n1")
    pod = await world.reserved_pod(first)
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
    # The first token no longer counts, so neither does the grant of its binding.
    assert (await world.read(pod))["metadata"]["annotations"]["hami.io/grant"] == grants[1]


async def test_a_binder_that_was_overtaken_takes_its_offer_back_and_frees_the_node(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The next pod on the node would get the offered grant as its answer.
    monkeypatch.setattr(bind_module, "TOKEN_TTL_S", 0.0)
    replica, _ = await world.replica_with_card()
    pod = await world.reserved_pod(replica)
    really_offer = AgentOffers.offer

    async def offer(self: AgentOffers, grant: Grant, node: NodeName) -> bool | None:
        answer = await really_offer(self, grant, node)
        await world.database.fetch(
            "UPDATE allocations SET token = nextval('allocation_tokens') WHERE id = $1",
            grant.allocation_id,
        )
        return answer

    monkeypatch.setattr(AgentOffers, "offer", offer)
    withdrawn: list[tuple[str, int]] = []

    async def hear(message: Message) -> None:
        fact = events.GRANT_MESSAGE.validate_json(message.data)
        if isinstance(fact, events.GrantWithdrawn):
            withdrawn.append((fact.pod_uid, fact.token))

    async def withdrawn_offers() -> list[tuple[str, int]]:
        return withdrawn

    assert "was taken over" in await replica.bind(pod, "n1")
    uid = pod["metadata"]["uid"]
    subscription = Subscription(
        stream=events.GRANTS_STREAM,
        subject=events.grants_subject("n1"),
        consumer=f"test-{uid}",
        deliver=Deliver.ALL,
    )
    listening = asyncio.create_task(world.bus.consume(subscription, hear))
    assert (uid, world.offered[uid].token) in await eventually(
        withdrawn_offers, "the offer to be taken back"
    )
    listening.cancel()
    assert (await world.rows(pod))[-1]["state"] == "binding", "the other binder's grant stays"
    monkeypatch.setattr(AgentOffers, "offer", really_offer)
    other = await world.reserved_pod(replica)
    assert await replica.bind(other, "n1") == "", "the node's lock is free"


@pytest.mark.parametrize("token_ttl_s", [0.0, PATIENCE_S], ids=["token checked", "found bound"])
async def test_a_binder_that_comes_to_its_turn_after_the_pod_was_bound_frees_the_node(
    world: World, monkeypatch: pytest.MonkeyPatch, token_ttl_s: float
) -> None:
    # The report names the other binder's token, so nothing else would free this one's lock.
    monkeypatch.setattr(bind_module, "TOKEN_TTL_S", token_ttl_s)
    replica, _ = await world.replica_with_card()
    pod = await world.reserved_pod(replica)
    really_offer = AgentOffers.offer

    async def offer(self: AgentOffers, grant: Grant, node: NodeName) -> bool | None:
        await world.database.fetch(
            "UPDATE allocations SET token = nextval('allocation_tokens') WHERE id = $1",
            grant.allocation_id,
        )
        ref = PodRef(grant.namespace, grant.pod_name, PodUid(grant.pod_uid))
        await KubernetesPodApi(world.api).bind(ref, node, annotations={})
        return await really_offer(self, grant, node)

    monkeypatch.setattr(AgentOffers, "offer", offer)

    assert await replica.bind(pod, "n1") == ""
    monkeypatch.setattr(AgentOffers, "offer", really_offer)
    other = await world.reserved_pod(replica)
    assert await replica.bind(other, "n1") == "", "the node's lock is free"


async def test_a_pod_that_went_after_its_lost_answer_keeps_its_slice_until_its_node_reports(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, card = await world.replica_with_card()
    pod = await world.reserved_pod(replica)
    really_bind = KubernetesPodApi.bind

    async def bind(self: KubernetesPodApi, *args: Any, **kwargs: Any) -> None:
        await really_bind(self, *args, **kwargs)
        await world.delete(pod)
        raise Unavailable("connection reset")

    monkeypatch.setattr(KubernetesPodApi, "bind", bind)

    assert "will show whether it runs" in await replica.bind(pod, "n1")
    releasing = await world.until(pod, "releasing")
    assert (await world.used_amounts(card))[0] == 1

    await world.publish_report(events.PodGone, releasing)
    await world.until(pod, "released")


async def test_a_pod_that_a_dead_binder_bound_and_that_went_keeps_its_slice_until_its_node_reports(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await world.replica(), await world.replica()
    [card] = await world.add_node("n1")
    pod = await world.reserved_pod(first)
    really_bind = KubernetesPodApi.bind
    never, claimed = asyncio.Event(), asyncio.Event()

    async def die(self: KubernetesPodApi, *args: Any, **kwargs: Any) -> None:
        claimed.set()
        await never.wait()

    monkeypatch.setattr(KubernetesPodApi, "bind", die)
    dying = asyncio.create_task(first.bind(pod, "n1"))
    async with asyncio.timeout(PATIENCE_S):
        await claimed.wait()
    dying.cancel()

    async def bind(self: KubernetesPodApi, *args: Any, **kwargs: Any) -> None:
        # What the first had sent arrives, and the pod is gone before the second's is there.
        await really_bind(self, *args, **kwargs)
        await world.delete(pod)
        await really_bind(self, *args, **kwargs)

    monkeypatch.setattr(KubernetesPodApi, "bind", bind)

    assert "will show whether it was bound" in await second.bind(pod, "n1")
    releasing = await world.until(pod, "releasing")
    assert (await world.used_amounts(card))[0] == 1

    await world.publish_report(events.PodGone, releasing)
    await world.until(pod, "released")
