"""The scheduler's metrics page, its figures for the webhook, and its audit trail."""

from typing import Any

import pytest
from hami_scheduler.adapters.postgres.queries import PostgresLedgerStats
from hami_scheduler.extender import filter as filtering
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.integration.scheduler.world import Replica, World
from tests.waiting import eventually

Json = dict[str, Any]
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}
TOTAL = {"phase": "total"}


async def samples(replica: Replica) -> list[Sample]:
    """Return the samples of the page in OpenMetrics."""
    page = await replica.http.get("/metrics", headers=OPENMETRICS)
    assert page.headers["content-type"].startswith("application/openmetrics-text")
    return [s for family in text_string_to_metric_families(page.text) for s in family.samples]


def value(found: list[Sample], name: str, **labels: str) -> float:
    return sum(s.value for s in found if s.name == name and labels.items() <= s.labels.items())


async def trace_of(world: World, pod: Json) -> str:
    """Return the trace of the pod's decision, once it is written."""
    found: list[str] = []

    async def is_written() -> bool:
        query = "SELECT trace_id FROM decisions WHERE pod_uid = $1"
        found[:] = [
            r["trace_id"] for r in await world.database.fetch(query, pod["metadata"]["uid"])
        ]
        return bool(found)

    await eventually(is_written, "the decision to be written")
    return found[0]


async def test_a_refusals_exemplar_opens_the_trace_of_its_decision(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "tracer", TracerProvider().get_tracer("test"))
    replica, _ = await world.replica_with_card()
    pod = await world.pod("large", memory_mib=10_000_000)

    await replica.filter(pod, "n1")

    found = await samples(replica)
    assert value(found, "hami_scheduler_decisions_total", outcome="refused") == 1
    reason = "CardInsufficientMemory"
    assert value(found, "hami_scheduler_decisions_total", outcome="refused", reason=reason) == 1
    duration = "hami_scheduler_decision_duration_seconds"
    for phase in ("parse", "place", "answer", "total"):
        assert value(found, f"{duration}_count", phase=phase) == 1, phase
    [exemplar] = [s.exemplar for s in found if s.exemplar]
    assert exemplar.labels["trace_id"] == await trace_of(world, pod)


async def test_placed_pods_and_pods_without_cards_are_counted_apart(world: World) -> None:
    replica, _ = await world.replica_with_card()
    before = await samples(replica)
    await replica.filter(await world.pod("slice"), "n1")

    found = await samples(replica)

    name = "hami_scheduler_decisions_total"
    assert value(found, name, outcome="placed") == 1
    # Known outcomes are there from the start on, so that rates begin at 0.
    assert [s.labels["outcome"] for s in before if s.name == name] == [
        *("placed", "error", "unmanaged")
    ]


async def test_what_waits_is_shown_with_its_reason_until_it_is_gone(world: World) -> None:
    replica, _ = await world.replica_with_card()
    pod = await world.pod("large", memory_mib=10_000_000)
    await replica.filter(pod, "n1")
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    await world.set_status(pod, conditions=[refused])

    async def waits() -> list[dict[str, str]]:
        name = "hami_pending_oldest_timestamp_seconds"
        return [s.labels for s in await samples(replica) if s.name == name]

    async def is_waiting() -> bool:
        return await waits() == [{"reason": "CardInsufficientMemory", "fits": "false"}]

    async def is_gone() -> bool:
        return await waits() == []

    await eventually(is_waiting, "the pod to wait, not to fit, with its reason")
    await world.delete(pod)
    await eventually(is_gone, "the pod to wait no longer")


async def test_deleted_nodes_are_named_while_the_inventory_stream_has_them(world: World) -> None:
    await world.replica()
    for node in ("stays", "deleted", "deleted-long-ago"):
        await world.add_node(node)
    for node, hours in (("deleted", 1), ("deleted-long-ago", 48)):
        await world.database.fetch(
            "UPDATE nodes SET gone_at = now() - make_interval(hours => $2) WHERE name = $1",
            node,
            hours,
        )

    found = await PostgresLedgerStats(world.database).read()

    assert (found.cluster.agent_nodes, found.cluster.gone_nodes) == (1, ("deleted",))


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
    replica, _ = await world.replica_with_card(owner_labels="team, app")
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
    replica, _ = await world.replica_with_card()
    pod = await world.pod("bare")
    await replica.filter(pod, "n1")
    assert await replica.bind(pod, "n1") == ""

    [row] = await grants(world)
    assert (row["owner_kind"], row["deployment"], row["created_by"]) == ("", "", None)
    assert row["labels"] == {}


async def test_a_pod_that_comes_to_bind_without_a_reservation_is_known_as_well(
    world: World,
) -> None:
    replica, _ = await world.replica_with_card()
    pod = await world.pod("bert", annotations=CREATED)
    assert await replica.bind(pod, "n1") == ""

    [row] = await grants(world)
    assert (row["owner_kind"], row["created_by"]) == ("", CREATOR)


async def test_a_call_where_nobody_is_asked_who_he_is_has_a_row_without_a_name(
    world: World,
) -> None:
    replica, _ = await world.replica_with_card()

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
