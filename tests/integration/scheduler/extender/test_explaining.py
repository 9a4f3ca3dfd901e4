"""Explain over real Postgres and the emulated API server, and pods that fail each second."""

import logging
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hami_scheduler.adapters.postgres.decisions import MAX_ROWS, RENEW_S, PostgresDecisionLog
from hami_scheduler.pod_events import MAX_TEXTS
from hami_scheduler.ports.ledger import DecisionRow
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.k8s.types import Json
from hamicommon.ledger import questions

from tests.integration.scheduler.world import GIB, Replica, World, inventory_device
from tests.waiting import eventually


async def wait_for_explanation(replica: Replica, pod: Json, **wanted: object) -> Json:
    """Wait until the pod's explanation has these fields."""
    metadata = pod["metadata"]
    path = f"/v1/pods/{metadata['uid']}/explain"
    query = {"namespace": metadata["namespace"], "name": metadata["name"]}

    async def has() -> Json | None:
        answer = await replica.http.get(path, params=query)
        body = dict(answer.json())
        return body if all(body.get(key) == value for key, value in wanted.items()) else None

    return await eventually(has, f"the explanation to have {wanted}")


def texts(answer: Json) -> list[str]:
    return [change["text"] for change in answer["counterfactuals"]]


async def events_of(world: World, pod: Json) -> list[Json]:
    items = (await world.api.get("/api/v1/namespaces/default/events"))["items"]
    return [e for e in items if e["involvedObject"]["uid"] == pod["metadata"]["uid"]]


async def test_what_is_short_and_the_largest_amount_that_fits_are_named(world: World) -> None:
    replica = await world.replica()
    await world.add_node("x1", cards=2)
    pod = await world.pod("big", memory_mib=90 * GIB)

    await replica.filter(pod, "x1")
    answer = await wait_for_explanation(replica, pod, outcome="refused")

    assert answer["summary"] == (
        "no card of 2 on 1 node has 92160 MiB: the largest has 81920 MiB; ask for less"
    )
    assert texts(answer) == ["fits if nvidia.com/gpumem <= 81920 MiB"]
    [node] = answer["nodes"]
    assert (node["fits"], node["reason"]) == (False, "2/2 CardInsufficientMemory")
    assert [(c["requested"], c["available"], c["unit"]) for c in node["cards"]] == [
        (92160, 81920, "MiB")
    ] * 2
    assert answer["cards_as_of"] == answer["last_at"]


async def test_the_pod_whose_end_would_help_is_named(world: World) -> None:
    replica = await world.replica()
    await world.add_node("y1")
    holder = await world.pod("holder", memory_mib=60 * GIB)
    small = await world.pod("small", memory_mib=1 * GIB)
    world.late.add("y1")
    for each in (holder, small):
        await replica.filter(each, "y1")
        assert await replica.bind(each, "y1") == ""
    pod = await world.pod("waits", memory_mib=50 * GIB)

    await replica.filter(pod, "y1")
    answer = await wait_for_explanation(replica, pod, outcome="refused")

    [memory, end] = answer["counterfactuals"]
    assert (memory["kind"], memory["limit"]) == ("memory", 19 * GIB)
    assert end["pods"] == [f"default/{holder['metadata']['name']}"]
    assert end["text"].endswith(f"ends (it holds {60 * GIB} MiB of card 0)")
    assert "wait until a pod ends" in answer["summary"]
    assert "retries it when capacity" in answer["retry"]


async def test_cards_out_of_service_are_named_with_their_state(world: World) -> None:
    replica = await world.replica()
    await world.add_node("z1", cards=2)
    path = "/api/v1/nodes/z1"
    note = {"metadata": {"annotations": {"hami.io/device-cordon": "GPU-z1-0"}}}
    await world.api.patch(path, note)
    await world.report(
        "z1",
        inventory_device("GPU-z1-0", 0),
        inventory_device("GPU-z1-1", 1, healthy=False, health_reason="XID 79"),
    )

    async def out_of_service() -> bool:
        rows = await world.database.fetch(
            "SELECT cordoned, healthy FROM devices WHERE node = 'z1' ORDER BY index"
        )
        return [tuple(row) for row in rows] == [(True, True), (False, False)]

    await eventually(out_of_service, "the cards to be out of service")
    pod = await world.pod("p")
    await replica.filter(pod, "z1")
    answer = await wait_for_explanation(replica, pod, outcome="refused")

    uncordon, healthy = answer["counterfactuals"]
    assert uncordon["text"] == "fits when card 0 (GPU-z1-0) on z1 is uncordoned"
    assert healthy["text"].startswith(
        "fits when card 1 (GPU-z1-1) on z1 is healthy again (XID 79 since 2"
    )


async def test_a_quota_that_refuses_reports_by_how_much_and_who_uses_it(world: World) -> None:
    replica = await world.replica()
    await world.add_node("q1")
    first = await world.pod("first", memory_mib=6 * GIB)
    pod = await world.pod("second", memory_mib=4 * GIB)
    name = f"q-{uuid.uuid4().hex[:6]}"
    quotas = "/api/v1/namespaces/default/resourcequotas"
    await world.api.create(
        quotas,
        {"metadata": {"name": name}, "spec": {"hard": {"limits.nvidia.com/gpumem": "8192"}}},
    )
    try:

        async def is_quota_recorded() -> bool:
            rows = await world.database.fetch(
                "SELECT 1 FROM quotas WHERE (limit_amount, used_amount) = (8192, 0)"
            )
            return bool(rows)

        await eventually(is_quota_recorded, "the quota to be in the ledger")
        await replica.filter(first, "q1")
        assert await replica.bind(first, "q1") == ""

        async def is_refused() -> bool:
            return not (await replica.filter(pod, "q1"))["NodeNames"]

        await eventually(is_refused, "the quota to be known in memory")
        answer = await wait_for_explanation(replica, pod, outcome="refused")
    finally:
        await world.api.delete(f"{quotas}/{name}")

    assert answer["quota"]["used"] == 6 * GIB
    assert texts(answer) == [
        "quota short by 2048 MiB: limits.nvidia.com/gpumem of namespace default is 8192, "
        "6144 used, 4096 wanted"
    ]
    assert "2048 MiB short" in answer["summary"]
    assert answer["quota_users"] == [
        {"pod": f"default/{first['metadata']['name']}", "amount": 6 * GIB}
    ]


async def test_the_reason_for_the_chosen_node_of_a_placed_pod_is_reported(world: World) -> None:
    replica = await world.replica()
    await world.add_node("w1")
    await world.add_node("w2")
    await replica.filter(await world.pod("first"), "w2")
    pod = await world.pod("second")

    await replica.filter(pod, "w1", "w2")
    assert await replica.bind(pod, "w2") == ""
    answer = await wait_for_explanation(replica, pod, outcome="placed")

    assert answer["chosen"] == "w2"
    assert answer["summary"] == (
        "2 of 2 nodes fit, and w2 is the fullest of them (node policy binpack)"
    )
    scores = {node["node"]: node["score"] for node in answer["nodes"]}
    assert list(scores) == ["w2", "w1"]
    assert scores["w2"] > scores["w1"] == 0
    assert answer["attempts"][0]["node"] == "w2"


async def test_what_whole_nodes_cost_is_explained_apart_from_what_is_stranded(
    world: World,
) -> None:
    replica = await world.replica(node_scheduler_policy="fragmentation")
    await world.add_node("f1", cards=2)
    await world.add_node("f2")
    both = {"nvidia.com/gpu": "2", "nvidia.com/gpucores": "100"}
    # It finds no room on f2, and now such pods are known to come.
    await replica.filter(await world.pod("both", limits=both), "f2")
    pod = await world.pod("one", limits={"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"})

    await replica.filter(pod, "f1", "f2")
    answer = await wait_for_explanation(replica, pod, outcome="placed")

    parts = {node["node"]: node["parts"] for node in answer["nodes"]}
    assert answer["chosen"] == "f2"
    assert parts["f2"]["whole_nodes_milli"] == 0
    assert parts["f1"]["whole_nodes_milli"] > 0
    assert parts["f1"]["scarce_models_milli"] == 0


async def test_the_same_refusal_again_is_one_decision_and_one_event_per_series(
    world: World,
) -> None:
    replica = await world.replica()
    await world.add_node("r1")
    pod = await world.pod("again", memory_mib=90 * GIB)

    for _ in range(5):
        await replica.filter(pod, "r1")
    answer = await wait_for_explanation(replica, pod, repeat_count=5)

    assert answer["earlier"] == []

    async def enough_events() -> list[Json] | None:
        events = await events_of(world, pod)
        return events if len(events) >= 3 else None

    events = await eventually(enough_events, "the pod's events")
    assert sorted(event["message"] for event in events) == [
        "1 nodes CardInsufficientMemory(r1)",
        "no available node, 1 nodes do not meet",
        "no card of 1 on 1 node has 92160 MiB: the largest has 81920 MiB; ask for less",
    ]
    assert {event["reason"] for event in events} == {"FilteringFailed"}


async def test_another_replica_counts_up_the_same_event(world: World) -> None:
    one, other = await world.replica(), await world.replica()
    await world.add_node("s1")
    pod = await world.pod("twice", memory_mib=90 * GIB)

    await one.filter(pod, "s1")

    async def has_three_events() -> bool:
        return len(await events_of(world, pod)) == 3

    await eventually(has_three_events, "the first replica's events")
    await other.filter(pod, "s1")

    async def has_counted() -> bool:
        return [event["count"] for event in await events_of(world, pod)] == [2, 2, 2]

    await eventually(has_counted, "the second replica to count up")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        pytest.param({"schedulerName": "other"}, "waits for scheduler other", id="other scheduler"),
        pytest.param({"containers": [{"name": "c", "image": "i"}]}, "asks for no card", id="none"),
        pytest.param({"schedulingGates": [{"name": "gate"}]}, "gates (gate)", id="gated"),
        pytest.param({}, "no decision is recorded yet", id="nobody asked"),
    ],
)
async def test_why_a_pod_was_never_filtered_is_read_from_the_pod_itself(
    world: World, spec: Json, reason: str
) -> None:
    replica = await world.replica()
    limits = {"nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "none", "resources": {"limits": limits}}
    body = {"schedulerName": "hami-scheduler", "containers": [container], **spec}
    pod = await world.api.create(
        "/api/v1/namespaces/default/pods",
        {"metadata": {"name": f"never-{uuid.uuid4().hex[:6]}"}, "spec": body},
    )

    answer = await wait_for_explanation(replica, pod, outcome="undecided")

    assert reason in answer["summary"]


async def test_an_unknown_pod_is_not_found(world: World) -> None:
    replica = await world.replica()

    answer = await replica.http.get("/v1/pods/nobody/explain")

    assert answer.status_code == 404


async def test_cards_that_no_decision_refers_to_are_dropped(world: World) -> None:
    replica = await world.replica()
    await world.add_node("t1")
    pod = await world.pod("big", memory_mib=90 * GIB)
    await replica.filter(pod, "t1")
    await wait_for_explanation(replica, pod, outcome="refused")
    database = world.database
    kept = "SELECT count(*) FROM decision_snapshots WHERE kind = 'counters'"
    await database.fetch(
        "INSERT INTO decision_snapshots (id, kind, content, used_at)"
        " VALUES ('stray', 'counters', 'x', now() - interval '1 hour')"
    )
    await database.fetch("UPDATE decision_snapshots SET used_at = now() - interval '1 hour'")
    before = (await database.fetchrow(kept))[0]

    gone = await PostgresDecisionLog(database).tidy(keep_days=14)

    assert gone >= 1
    assert (await database.fetchrow(kept))[0] == before - gone
    answer = await wait_for_explanation(replica, pod, outcome="refused")
    assert answer["nodes"][0]["cards"]


async def test_a_deleted_pod_waits_no_longer_and_keeps_its_last_refusal(world: World) -> None:
    replica = await world.replica()
    await world.add_node("d1")
    pod, other = await world.pod("big", memory_mib=90 * GIB), await world.pod("also-big")
    other["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = str(90 * GIB)
    uids = [one["metadata"]["uid"] for one in (pod, other)]

    async def waiting() -> list[str]:
        async with world.database.connection() as connection:
            rows = (await questions.answer(connection, "waiting-pods", {})).rows
        return [row["pod_uid"] for row in rows if row["pod_uid"] in uids]

    async def both() -> bool:
        return await waiting() == uids

    async def one() -> bool:
        return await waiting() == uids[1:]

    await replica.filter(pod, "d1")
    await wait_for_explanation(replica, pod, outcome="refused", wait_end="")
    await replica.filter(other, "d1")
    await eventually(both, "both to wait")
    # kube-scheduler asks about neither of them any more.
    await world.database.fetch("UPDATE decisions SET last_at = last_at - interval '1 hour'")
    await world.delete(pod)
    await eventually(one, "the one that was deleted to be off the list")

    found = await wait_for_explanation(replica, pod, wait_end="deleted")
    assert found["outcome"] == "refused"
    assert found["summary"].startswith("no card of 1 on 1 node has 92160 MiB")
    assert found["wait_ended_at"] > found["last_at"]
    metadata = pod["metadata"]
    query = f"namespace={metadata['namespace']}&name={metadata['name']}"
    [named] = (await replica.get(f"/v1/pods?{query}"))["items"]
    assert named["pod_uid"] == metadata["uid"]

    # A pod that is refused again waits again, whatever was noted.
    await world.database.fetch(
        "UPDATE decisions SET wait_end = 'gone', wait_ended_at = now() WHERE pod_uid = $1", uids[1]
    )
    await replica.filter(other, "d1")
    await eventually(one, "the one that was refused again to wait")


WEIGHTS = "hami.io/device-scoring-weights"
NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def an_error(uid: str, at: datetime, message: str = "no", **changed: object) -> DecisionRow:
    values: dict[str, object] = {
        "pod_uid": PodUid(uid),
        "namespace": "default",
        "pod_name": "p",
        "outcome": "error",
        "node": None,
        "allocation_id": None,
        "candidates": 0,
        "request": {},
        "policy": {},
        "reason_counts": {},
        "detail": b"",
        "inventory": None,
        "counters": None,
        "message": message,
        "summary": message,
        "view_version": 1,
        "phase_ms": {},
        "trace_id": "",
        "decided_at": at,
        **changed,
    }
    return DecisionRow(**values)


async def rows_of(world: World, uid: str) -> list[Json]:
    found = await world.database.fetch(
        "SELECT outcome, message, summary, repeat_count, last_at, allocation_id::text AS allocation"
        " FROM decisions WHERE pod_uid = $1 ORDER BY at, id",
        uid,
    )
    return [dict(row) for row in found]


async def test_the_same_error_again_is_one_row(world: World) -> None:
    log, uid = PostgresDecisionLog(world.database), uuid.uuid4().hex
    for second in range(0, 90, 3):
        batch = [an_error(uid, NOW + timedelta(seconds=second + n)) for n in range(3)]
        await log.record(batch)

    [row] = await rows_of(world, uid)
    assert row["repeat_count"] == 90
    assert row["last_at"] == NOW + timedelta(seconds=89)


async def test_an_error_that_differs_each_time_is_a_bounded_number_of_rows(world: World) -> None:
    log, uid = PostgresDecisionLog(world.database), uuid.uuid4().hex
    last = 3 * MAX_ROWS
    for second in range(last + 1):
        at = NOW + timedelta(seconds=second)
        outcome = "error" if second % 2 else "refused"
        await log.record([an_error(uid, at, f"no {second}", outcome=outcome)])

    rows = await rows_of(world, uid)
    assert len(rows) == MAX_ROWS
    assert sum(row["repeat_count"] for row in rows) == last + 1, "none is lost"
    newest = rows[-1]
    assert newest["last_at"] == NOW + timedelta(seconds=last)
    recorded_s = int(newest["message"].removeprefix("no "))
    assert last - recorded_s <= RENEW_S, "the newest row has what is wrong by now"
    assert newest["summary"] == newest["message"]
    assert newest["outcome"] == ("error" if recorded_s % 2 else "refused")

    await log.record([an_error(uid, NOW + timedelta(hours=2), "later")])
    assert len(await rows_of(world, uid)) == MAX_ROWS + 1, "an hour later there is room again"


async def test_a_placement_is_a_row_of_its_own_and_one_that_is_kept_is_counted(
    world: World,
) -> None:
    log, uid = PostgresDecisionLog(world.database), uuid.uuid4().hex
    node, at = NodeName("n"), NOW
    for number in range(3):
        placed = AllocationId(str(uuid.UUID(int=number)))
        for again in range(3):
            at += timedelta(seconds=1)
            message = "kept" if again else "placed"
            one = an_error(uid, at, message, outcome="placed", node=node, allocation_id=placed)
            await log.record([DecisionRow(**{**_fields(one), "kept": bool(again)})])

    rows = await rows_of(world, uid)
    assert [(row["message"], row["repeat_count"]) for row in rows] == [
        ("placed", 1),
        ("kept", 2),
    ] * 3


async def test_a_decision_on_a_group_is_of_no_pod_that_waits(world: World) -> None:
    log, key = PostgresDecisionLog(world.database), f"group/default/{uuid.uuid4().hex}"
    now, member = datetime.now(UTC) - timedelta(seconds=10), uuid.uuid4().hex
    whole = {"outcome": "refused", "group_key": key, "group_size": 8}
    about_all = {**whole, "pod_name": ""}
    await log.record([an_error(member, now, "waits", **whole)])
    for second in range(3):
        await log.record([an_error(key, now + timedelta(seconds=second), "7 fit", **about_all)])
    placed = {**about_all, "outcome": "placed", "kept": True}
    for second in range(3, 5):
        await log.record([an_error(key, now + timedelta(seconds=second), "8 fit", **placed)])

    assert [(row["summary"], row["repeat_count"]) for row in await rows_of(world, key)] == [
        ("7 fit", 3),
        ("8 fit", 2),
    ]
    for waiting in ("waiting_pods_at(now())", "v_pending_reasons"):
        found = await world.database.fetch(
            f"SELECT pod_uid FROM {waiting} WHERE pod_uid IN ($1, $2)", key, member
        )
        assert [row["pod_uid"] for row in found] == [member]
    assert {each.pod_uid for each in await log.open_waits()} & {key, member} == {member}
    sizes = await world.database.fetch(
        "SELECT pod_name, group_size FROM decisions WHERE group_key = $1 ORDER BY at, id", key
    )
    assert [tuple(row) for row in sizes] == [("p", 8), ("", 8), ("", 8)]


def _fields(decision: DecisionRow) -> Json:
    return {name: getattr(decision, name) for name in DecisionRow.__dataclass_fields__}


@pytest.mark.parametrize("changing", [False, True], ids=["one text", "another each time"])
async def test_a_pod_with_a_malformed_annotation_is_one_short_row_and_few_lines(
    world: World, caplog: pytest.LogCaptureFixture, *, changing: bool
) -> None:
    """Such a pod was admitted before the webhook refused it, or changed since."""
    replica, _ = await world.replica_with_card()
    pod = await world.pod("odd", annotations={WEIGHTS: "x" * 200_000})
    tries = 2 * MAX_TEXTS
    with caplog.at_level(logging.INFO):
        for number in range(tries):
            if changing:
                pod["metadata"]["annotations"][WEIGHTS] = f"{number}\0\n" + "x" * 200_000
            error = (await replica.filter(pod, "n1"))["Error"]
            assert error.startswith(f"annotation {WEIGHTS} has 200")
            assert len(error) < 300
            assert error.isprintable()

    async def has_all_tries() -> bool:
        rows = await rows_of(world, pod["metadata"]["uid"])
        return sum(row["repeat_count"] for row in rows) == tries

    await eventually(has_all_tries, "the decisions")
    rows = await rows_of(world, pod["metadata"]["uid"])
    assert len(rows) == (tries if changing else 1)
    assert max(len(row["message"]) for row in rows) < 300
    lines = [one for one in caplog.records if one.getMessage() == "Failed to filter nodes"]
    assert len(lines) == (MAX_TEXTS if changing else 1)
