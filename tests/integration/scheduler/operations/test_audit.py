"""Auditors find the user of each grant, and the callers of the operator API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.scheduler.world import World

pytestmark = pytest.mark.integration

CREATOR = "system:serviceaccount:kube-system:replicaset-controller"
CREATED = {"hami.io/created-by": CREATOR}
LABELS = {"app": "bert", "team": "nlp", "pod-template-hash": "6d5f8c7b9", "other": "x"}
OWNER = "bert-6d5f8c7b9"
CONTAINER = {"name": "main", "image": "none"}


async def replica_set(world: World) -> dict[str, Any]:
    """Make an owner; return the reference to it. A pod whose owner is missing is collected."""
    path = "/apis/apps/v1/namespaces/default/replicasets"
    labels = {"matchLabels": {"app": "bert"}}
    template = {"metadata": {"labels": {"app": "bert"}}, "spec": {"containers": [CONTAINER]}}
    spec = {"replicas": 0, "selector": labels, "template": template}
    made = await world.api.create(path, {"metadata": {"name": OWNER}, "spec": spec})
    world.stack.push_async_callback(world.api.delete, f"{path}/{OWNER}")
    uid = made["metadata"]["uid"]
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": OWNER,
        "uid": uid,
        "controller": True,
    }


async def grants(world: World) -> list[Any]:
    return await world.database.fetch(
        "SELECT owner_kind, owner_name, owner_uid, deployment, service_account, created_by, labels"
        " FROM v_allocation_history ORDER BY reserved_at, attempt"
    )


async def test_a_grant_names_owner_account_creator_and_the_chosen_labels(world: World) -> None:
    replica = await world.replica(owner_labels="team, app")
    await world.add_node("n1")
    owner = await replica_set(world)
    pod = await world.pod("bert", annotations=CREATED, labels=LABELS, ownerReferences=[owner])
    pod["spec"]["serviceAccountName"] = "trainer"
    wanted = (
        "ReplicaSet",
        OWNER,
        owner["uid"],
        "bert",
        "trainer",
        CREATOR,
        {"app": "bert", "team": "nlp"},
    )

    assert (await replica.filter(pod, "n1"))["NodeNames"] == ["n1"]
    assert await replica.bind(pod, "n1") == ""

    assert [tuple(row) for row in await grants(world)] == [wanted]


async def test_a_bare_pod_has_no_owner_and_an_unstamped_one_no_known_creator(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("bare")
    await replica.filter(pod, "n1")
    assert await replica.bind(pod, "n1") == ""

    [row] = await grants(world)
    assert (row["owner_kind"], row["deployment"], row["created_by"]) == ("", "", None)
    assert row["labels"] == {}


async def test_a_pod_that_comes_to_bind_without_a_reservation_is_known_as_well(
    world: World,
) -> None:
    replica = await world.replica(allocate_at="bind")
    await world.add_node("n1")
    pod = await world.pod("bert", annotations=CREATED)
    assert await replica.bind(pod, "n1") == ""

    [row] = await grants(world)
    assert (row["owner_kind"], row["created_by"]) == ("", CREATOR)


async def test_a_call_where_nobody_is_asked_who_he_is_has_a_row_without_a_name(
    world: World,
) -> None:
    replica = await world.replica()
    await world.add_node("n1")

    answer = await replica.http.post("/v1/adopt", json={"apply": False, "nodes": ["n1"]})
    assert answer.status_code == 200
    missing = await replica.http.post("/v1/dead-letters/1/send")
    assert missing.status_code == 404

    rows = await world.database.fetch(
        "SELECT * FROM operator_calls WHERE verb <> 'migrate' ORDER BY id"
    )
    assert [(row["verb"], row["object"], row["outcome"]) for row in rows] == [
        ("adopt", '{"apply":false,"nodes":["n1"]}', "done"),
        ("send-dead-letter", "1", "failed"),
    ]
    assert {(row["username"], row["source"], row["address"]) for row in rows} == {
        (None, "open", "127.0.0.1")
    }
