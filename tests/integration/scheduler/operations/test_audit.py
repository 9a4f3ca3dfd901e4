"""What an auditor finds afterwards: whose grant it was, and who called the operator API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.scheduler.world import World

pytestmark = pytest.mark.integration

CREATOR = "system:serviceaccount:kube-system:replicaset-controller"
OWNED: dict[str, Any] = {
    "annotations": {"hami.io/created-by": CREATOR},
    "labels": {"app": "bert", "team": "nlp", "pod-template-hash": "6d5f8c7b9", "other": "x"},
    "ownerReferences": [
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": "bert-6d5f8c7b9",
            "uid": "6d9f5c1e-0000-4000-8000-000000000001",
            "controller": True,
        }
    ],
}


async def grants(world: World) -> list[Any]:
    return await world.database.fetch(
        "SELECT owner_kind, owner_name, owner_uid, deployment, service_account, created_by, labels"
        " FROM v_allocation_history ORDER BY reserved_at, attempt"
    )


async def test_a_grant_names_owner_account_creator_and_the_chosen_labels(world: World) -> None:
    replica = await world.replica(owner_labels="team, app")
    await world.add_node("n1")
    pod = await world.pod("bert", **OWNED)
    pod["spec"]["serviceAccountName"] = "trainer"
    wanted = (
        "ReplicaSet",
        "bert-6d5f8c7b9",
        "6d9f5c1e-0000-4000-8000-000000000001",
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
    # A pod whose owner does not exist is collected; this one has none.
    pod = await world.pod("bert", annotations=OWNED["annotations"])
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
