"""/bind of pods with ResourceClaims: the grant is entered before the pod has its node.

On a real control plane: `tests/e2e/dra/test_claims_at_bind.py`.
"""

import asyncio

import pytest
from hami_scheduler.adapters.kubernetes import KubernetesClaimApi, KubernetesPodApi
from hamicommon.errors import Forbidden, Unavailable
from hamicommon.k8s.annotations import ASSIGNED_NODE

from tests.integration.scheduler.claimed_pods import Claims, known_claims, pod_of
from tests.integration.scheduler.world import World
from tests.waiting import PATIENCE_S


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Claims:
    return known_claims(monkeypatch)


async def test_what_was_allocated_is_granted_as_the_pod_is_bound(
    world: World, claims: Claims
) -> None:
    replica, card = await world.replica_with_card()
    pod = await pod_of(world, claims, "asks", card, bound=False)

    assert await replica.bind(pod, "n1") == ""

    await world.until(pod, "bound")
    assert await world.used_amounts(card) == (1, 4096, 30)
    now = await world.read(pod)
    assert now["spec"]["nodeName"] == "n1"
    assert now["metadata"]["annotations"][ASSIGNED_NODE] == "n1"
    [event] = await world.database.fetch(
        "SELECT detail->'claims'->0->>'claim' AS claim FROM allocation_events"
        " WHERE pod_uid = $1 AND sequence = 1",
        pod["metadata"]["uid"],
    )
    assert event["claim"] == "asks"
    # Asked again, as after a lost answer.
    assert await replica.bind(pod, "n1") == ""
    assert len(await world.rows(pod)) == 1
    await world.set_status(pod, phase="Succeeded")
    await world.until(pod, "released")
    assert await world.used_amounts(card) == (0, 0, 0)


async def test_without_room_nothing_is_granted_and_the_allocation_is_taken_back(
    world: World, claims: Claims
) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1", memory_mib=6000)
    first = await pod_of(world, claims, "first", card, bound=False)
    other = await pod_of(world, claims, "other", card, bound=False)
    assert await replica.bind(first, "n1") == ""

    assert "memory" in await replica.bind(other, "n1")

    assert await world.rows(other) == []
    assert await world.used_amounts(card) == (1, 4096, 30)
    assert claims["other"]["status"] == {"allocation": None, "reservedFor": None}
    assert "nodeName" not in (await world.read(other))["spec"]
    assert claims["first"]["status"]["allocation"] is not None


async def test_an_allocation_that_another_pod_holds_is_not_taken_back(
    world: World, claims: Claims
) -> None:
    replica = await world.replica()
    [card] = await world.add_node("n1", memory_mib=4000)
    pod = await pod_of(world, claims, "asks", card, bound=False)
    holder = {"resource": "pods", "name": "holder", "uid": "another"}
    claims["asks"]["status"]["reservedFor"].append(holder)

    assert "memory" in await replica.bind(pod, "n1")

    assert claims["asks"]["status"]["allocation"] is not None


async def test_a_binder_that_dies_with_the_grant_in_the_ledger_is_taken_over(
    world: World, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await world.replica(), await world.replica()
    [card] = await world.add_node("n1")
    pod = await pod_of(world, claims, "asks", card, bound=False)
    never, reached = asyncio.Event(), asyncio.Event()
    really_bind = KubernetesPodApi.bind

    async def hang(_self: KubernetesPodApi, *_args: str, **_named: str) -> None:
        reached.set()
        await never.wait()

    monkeypatch.setattr(KubernetesPodApi, "bind", hang)
    dying = asyncio.create_task(first.bind(pod, "n1"))
    async with asyncio.timeout(PATIENCE_S):
        await reached.wait()
    dying.cancel()
    monkeypatch.setattr(KubernetesPodApi, "bind", really_bind)

    assert await second.bind(pod, "n1") == ""
    await world.until(pod, "bound")
    assert len(await world.rows(pod)) == 1
    assert await world.used_amounts(card) == (1, 4096, 30)


async def test_a_binding_that_fails_gives_the_grant_back_and_is_tried_again(
    world: World, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, card = await world.replica_with_card()
    pod = await pod_of(world, claims, "asks", card, bound=False)
    really_bind = KubernetesPodApi.bind

    async def fail(_self: KubernetesPodApi, *_args: str, **_named: str) -> None:
        raise Unavailable("the API server is away")

    monkeypatch.setattr(KubernetesPodApi, "bind", fail)
    assert "away" in await replica.bind(pod, "n1")
    await world.until(pod, "failed")
    assert await world.used_amounts(card) == (0, 0, 0)
    # kube-scheduler keeps its allocation, and asks again.
    assert claims["asks"]["status"]["allocation"] is not None

    monkeypatch.setattr(KubernetesPodApi, "bind", really_bind)
    assert await replica.bind(pod, "n1") == ""
    await world.until(pod, "bound")
    assert await world.used_amounts(card) == (1, 4096, 30)


async def test_a_pod_of_foreign_claims_is_bound_as_one_without_cards(
    world: World, claims: Claims
) -> None:
    replica, card = await world.replica_with_card()
    pod = await pod_of(world, claims, "foreign", card, bound=False)
    [result] = claims["foreign"]["status"]["allocation"]["devices"]["results"]
    result["driver"] = "net.example.com"

    assert await replica.bind(pod, "n1") == ""

    assert (await world.read(pod))["spec"]["nodeName"] == "n1"
    assert await world.rows(pod) == []


async def test_where_claims_may_not_be_read_the_grant_is_left_to_the_node(
    world: World, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def get(_self: KubernetesClaimApi, _namespace: str, _name: str) -> None:
        raise Forbidden("no right to resourceclaims")

    monkeypatch.setattr(KubernetesClaimApi, "get", get)
    replica, card = await world.replica_with_card()
    pod = await pod_of(world, claims, "unread", card, bound=False)

    assert await replica.bind(pod, "n1") == ""

    assert (await world.read(pod))["spec"]["nodeName"] == "n1"
    assert await world.rows(pod) == []
