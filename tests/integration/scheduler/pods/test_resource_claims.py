"""Grants for devices allocated to pods' ResourceClaims.

The same on a real control plane and kubelet: `tests/e2e_node/dra/test_resource_claims.py`.
"""

import asyncio
from typing import Any

import pytest
from hami_scheduler.adoption.resource_claims import ClaimHolders
from hamicommon import events
from hamicommon.k8s.annotations import ASSIGNED_NODE
from hamicommon.k8s.types import Json

from tests.integration.scheduler.claimed_pods import Claims, known_claims, pod_of
from tests.integration.scheduler.world import World
from tests.waiting import PATIENCE_S


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> Claims:
    return known_claims(monkeypatch)


async def ask(world: World, pod: Json, **changes: Any) -> events.ClaimsReply:
    metadata = pod["metadata"]
    request = events.ClaimsRequest(
        node="n1",
        pod_uid=metadata["uid"],
        namespace=metadata["namespace"],
        pod_name=metadata["name"],
    ).model_copy(update=changes)
    reply = await world.ask("n1", events.claims_subject("n1"), request)
    return events.ClaimsReply.model_validate_json(reply)


async def test_what_was_allocated_is_granted_watched_and_released(
    world: World, claims: Claims
) -> None:
    await world.replica()
    [card, other] = await world.add_node("n1", cards=2)
    pod = await pod_of(world, claims, "two", card, other)

    answer = await ask(world, pod)

    assert answer.grant is not None, answer.refused
    assert (answer.grant.answered, answer.grant.claimed) == (True, True)
    [container] = answer.grant.containers
    assert [(s.uuid, s.memory_mib, s.core_percent) for s in container.shares] == [
        (card, 4096, 30),
        (other, 4096, 30),
    ]
    [row] = await world.rows(pod)
    assert (answer.grant.token, row["state"]) == (row["token"], "bound")
    assert await world.used_amounts(card) == (1, 4096, 30)
    await world.publish_report(events.Allocated, row)
    await world.until(pod, "allocated")
    await world.set_status(pod, phase="Succeeded")
    await world.until(pod, "released")
    assert await world.used_amounts(card) == (0, 0, 0)


async def test_asking_at_once_and_again_gives_one_grant(world: World, claims: Claims) -> None:
    _, card = await world.replica_with_card()
    pod = await pod_of(world, claims, "again", card)

    answers = await asyncio.gather(*(ask(world, pod) for _ in range(4)))

    assert len({answer.grant.token for answer in answers if answer.grant}) == 1
    assert len(await world.rows(pod)) == 1


async def test_claims_never_get_more_than_limits_leave(world: World, claims: Claims) -> None:
    await world.replica()
    [card] = await world.add_node("n1", memory_mib=6000)
    pods = [await pod_of(world, claims, f"most-{n}", card) for n in range(6)]

    answers = await asyncio.gather(*(ask(world, pod) for pod in pods))

    assert sum(answer.grant is not None for answer in answers) == 1
    assert await world.used_amounts(card) == (1, 4096, 30)
    assert all("memory" in answer.refused for answer in answers if answer.grant is None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"pod_uid": "another"}, "does not run on", id="another uid"),
        pytest.param({"pod_name": "nobody"}, "nobody", id="gone by then"),
    ],
)
async def test_a_pod_that_is_not_there_gets_nothing(
    world: World, claims: Claims, change: Json, reason: str
) -> None:
    _, card = await world.replica_with_card()
    pod = await pod_of(world, claims, "there", card)
    answer = await ask(world, pod, **change)
    assert (answer.grant, reason in answer.refused) == (None, True), answer.refused
    assert await world.rows(pod) == []


async def test_what_a_claim_does_not_back_is_refused_with_the_reason(
    world: World, claims: Claims
) -> None:
    _, card = await world.replica_with_card()
    pod = await pod_of(world, claims, "odd", card)
    status = claims["odd"]["status"]

    for change, reason in (
        ({"reservedFor": []}, "not reserved for the pod"),
        ({"allocation": None}, "none of its containers uses a HAMi card"),
    ):
        claims["odd"]["status"] = status | change
        assert reason in (await ask(world, pod)).refused
    status["allocation"]["devices"]["results"][0]["device"] = "gpu-gone"
    claims["odd"]["status"] = status
    assert "not a card of this node" in (await ask(world, pod)).refused
    del claims["odd"]
    assert "not found" in (await ask(world, pod)).refused
    assert await world.rows(pod) == []


async def create_second(world: World, claims: Claims, first: Json, name: str) -> Json:
    """A pod on n1 that joins the first one's claim, past its node's agent."""
    claim = claims[first["metadata"]["name"]]
    container = first["spec"]["containers"][0]
    pod = await world.api.create(
        "/api/v1/namespaces/default/pods",
        {
            "metadata": {"name": name},
            "spec": {
                "resourceClaims": [{"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}],
                "containers": [{**container, "name": "other"}],
            },
        },
    )
    metadata = pod["metadata"]
    reserved = {"resource": "pods", "name": name, "uid": metadata["uid"]}
    claim["status"]["reservedFor"].append(reserved)
    await world.api.create(
        f"/api/v1/namespaces/default/pods/{name}/binding",
        {"metadata": {"name": name}, "target": {"name": "n1"}},
    )
    return await world.read(pod)


async def test_two_pods_that_hold_a_claim_are_one_budget_with_two_holders(
    world: World, claims: Claims
) -> None:
    _, card = await world.replica_with_card()
    pod = await pod_of(world, claims, "first", card)
    answer = await ask(world, pod)
    assert answer.grant is not None, answer.refused

    other = await create_second(world, claims, pod, "second")
    await world.until(other, "bound", "allocated")
    again = await ask(world, other)
    assert again.grant is not None
    [own], [first] = again.grant.containers, answer.grant.containers
    assert (own.slices, own.shares) == (first.slices, first.shares)
    assert await world.used_amounts(card) == (1, 4096, 30)
    holders = await world.database.fetch(
        "SELECT pod_name, container_name, request, counted FROM v_claim_holders"
        " WHERE claim_uid = 'uid-first' AND held_until IS NULL ORDER BY counted DESC"
    )
    assert [tuple(row) for row in holders] == [
        ("first", "main", "r0", True),
        ("second", "other", "r0", False),
    ]

    await world.set_status(pod, phase="Succeeded")
    await world.until(pod, "released")
    assert await world.used_amounts(card) == (1, 4096, 30)
    await world.set_status(other, phase="Succeeded")
    await world.until(other, "released")
    assert await world.used_amounts(card) == (0, 0, 0)


async def test_a_holder_that_nobody_saw_yet_is_entered_before_the_first_one_ends(
    world: World, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ClaimHolders, "pod_seen", lambda _self, _pod: None)
    _, card = await world.replica_with_card()
    pod = await pod_of(world, claims, "first", card)
    assert (await ask(world, pod)).grant is not None
    other = await create_second(world, claims, pod, "second")

    await world.set_status(pod, phase="Succeeded")
    await world.until(pod, "released")
    assert (await world.rows(other))[-1]["state"] == "bound"
    assert await world.used_amounts(card) == (1, 4096, 30)
    await world.set_status(other, phase="Succeeded")
    await world.until(other, "released")
    assert await world.used_amounts(card) == (0, 0, 0)


async def test_a_running_pod_whose_grant_the_ledger_lost_is_entered_again_from_its_claims(
    world: World, claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restored backup does this: the kubelet has the claim prepared, and does not ask again."""
    monkeypatch.setattr(ClaimHolders, "pod_seen", lambda _self, _pod: None)
    _, card = await world.replica_with_card()
    lost = await pod_of(world, claims, "lost", card)
    foreign = await pod_of(world, claims, "foreign", card)
    [result] = claims["foreign"]["status"]["allocation"]["devices"]["results"]
    result["driver"] = "net.example.com"
    more = await pod_of(world, claims, "more", card, mib=81920)
    running = {"name": "main", "containerID": "containerd://one", "state": {"running": {}}}
    for pod in (foreign, lost, more):
        # Of the grants that they had.
        path = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"
        await world.api.patch(path, {"metadata": {"annotations": {ASSIGNED_NODE: "n1"}}})
        await world.set_status(pod, phase="Running", containerStatuses=[running])

    await world.until(lost, "bound", "allocated")
    drift = 'SELECT "class", repaired, detail FROM drift_journal ORDER BY id'
    async with asyncio.timeout(PATIENCE_S):
        while len(found := await world.database.fetch(drift)) < 2:
            await asyncio.sleep(0.05)

    assert await world.used_amounts(card) == (1, 4096, 30)
    assert [tuple(row)[:2] for row in found] == [
        ("grant-lost", True),
        ("pod-without-grant", False),
    ]
    assert "with ResourceClaims but has no grant" in found[1]["detail"]
    assert await world.rows(foreign) == await world.rows(more) == []


async def test_limits_and_claims_in_one_pod_are_refused(world: World, claims: Claims) -> None:
    _, card = await world.replica_with_card()
    pod = await pod_of(world, claims, "both", card, limits={"nvidia.com/gpu": "1"})
    assert "by limits and by claims" in (await ask(world, pod)).refused
    assert await world.rows(pod) == []
