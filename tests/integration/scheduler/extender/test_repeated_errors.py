"""A pod that fails each second, for as long as it exists, costs the ledger and the logs next to
nothing: not more when its message is long, nor when it is another one each time."""

from __future__ import annotations

import logging
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hami_scheduler.adapters.postgres.decisions import MAX_ROWS, RENEW_S, PostgresDecisionLog
from hami_scheduler.log_limit import MAX_TEXTS
from hami_scheduler.ports.ledger import DecisionRow
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.k8s.types import Json

from tests.integration.scheduler.world import World
from tests.waiting import eventually

pytestmark = pytest.mark.integration

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


def _fields(decision: DecisionRow) -> Json:
    return {name: getattr(decision, name) for name in DecisionRow.__dataclass_fields__}


@pytest.mark.parametrize("changing", [False, True], ids=["one text", "another each time"])
async def test_a_pod_with_a_malformed_annotation_is_one_short_row_and_few_lines(
    world: World, caplog: pytest.LogCaptureFixture, *, changing: bool
) -> None:
    """Such a pod was admitted before the webhook refused it, or changed since."""
    replica = await world.replica()
    await world.add_node("n1")
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

    async def written() -> bool:
        rows = await rows_of(world, pod["metadata"]["uid"])
        return sum(row["repeat_count"] for row in rows) == tries

    await eventually(written, "the decisions")
    rows = await rows_of(world, pod["metadata"]["uid"])
    assert len(rows) == (tries if changing else 1)
    assert max(len(row["message"]) for row in rows) < 300
    lines = [one for one in caplog.records if one.getMessage() == "filter failed"]
    assert len(lines) == (MAX_TEXTS if changing else 1)
