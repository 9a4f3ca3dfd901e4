"""docs/sql.md: every question runs unchanged, by the read-only role, and its answer is right.

The ledger holds four days of a made-up cluster. The answers are recomputed in Python.
"""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from itertools import combinations
from pathlib import Path

import asyncpg
import pytest
from hami_metrics.adapters.namespaces import sum_up_namespaces

from bench.pages import made_up
from bench.pages.filler import REFUSED_EVERY
from bench.pages.made_up import Grant
from bench.pages.questions import DOCUMENT, sql_questions
from tests.integration.db.questions.four_days import HISTORY, NOW, Filled

ASKED = sql_questions()
SHARED = "Who shared a card with a pod"
"""The question for which a pod may have no neighbour; see the case below."""
CLAIMED = "Who holds a ResourceClaim, and who held it"
"""Pods of these days asked by limits; see the case below."""


@pytest.fixture
async def reader(filled: Filled) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(filled.dsn)
    await connection.execute("SET ROLE hami_reader")
    yield connection
    await connection.close()


def test_the_document_asks_what_was_promised() -> None:
    text = Path(DOCUMENT).read_text()

    assert text.count("```sql") == len(ASKED)
    asked_of = ("held", "GPU-hours", "wait", "sick card", "month", "as whom", "did a user run")
    for wanted in (*asked_of, "refused", "dead letters", "idle", "added or removed", "quotas"):
        assert any(wanted in title for title in ASKED), wanted


@pytest.mark.parametrize("title", [title for title in ASKED if title not in (SHARED, CLAIMED)])
async def test_a_question_runs_as_it_stands_and_finds_something(
    reader: asyncpg.Connection, title: str
) -> None:
    assert await reader.fetch(ASKED[title])


async def test_who_held_what_is_who_was_there(reader: asyncpg.Connection) -> None:
    at = NOW - timedelta(days=1)
    query = ASKED["Who held what at a moment"].replace("now() - interval '3 days'", f"'{at}'")

    rows = await reader.fetch(query)

    there = [
        (g.pod_name, g.uuid)
        for g in HISTORY
        if g.reserved <= at.timestamp() and (g.ended is None or g.ended > at.timestamp())
    ]
    assert sorted((row["pod_name"], row["device_uuid"]) for row in rows) == sorted(there)


async def test_who_shared_a_card_was_there_at_the_same_time(reader: asyncpg.Connection) -> None:
    by_card: dict[int, list[Grant]] = defaultdict(list)
    for g in HISTORY:
        by_card[g.card].append(g)
    end_s = NOW.timestamp()
    beside = {
        (first.pod_name, second.pod_name)
        for there in by_card.values()
        for first, second in combinations(there, 2)
        if second.reserved < (first.ended or end_s)
    }
    pod = min(beside)[0]
    query = ASKED[SHARED].replace("ORDER BY reserved_at DESC LIMIT 1", f"WHERE pod_name = '{pod}'")

    rows = await reader.fetch(query)

    expected = {b for a, b in beside if a == pod} | {a for a, b in beside if b == pod}
    assert {row["pod_name"] for row in rows} == expected


async def test_who_holds_a_claim_is_each_pod_and_a_slice_is_counted_for_one(
    filled: Filled,
) -> None:
    connection = await asyncpg.connect(filled.dsn)
    entering = connection.transaction()
    await entering.start()
    try:
        await connection.execute(
            "INSERT INTO allocation_claims (allocation_id, container_index, position, claim_uid,"
            " claim_name, request, share_id, device_uuid, vendor, memory_mib, core_percent, slots,"
            " counted) SELECT allocation_id, container_index, position, 'claim-uid', 'card', 'gpu',"
            " 'share', device_uuid, vendor, memory_mib, core_percent, slots,"
            " row_number() OVER (ORDER BY allocation_id) = 1"
            " FROM (SELECT DISTINCT ON (allocation_id) * FROM allocation_devices) AS d LIMIT 2"
        )
        await connection.execute(
            "INSERT INTO allocation_containers (allocation_id, container_index, name, role)"
            " SELECT allocation_id, container_index, 'cuda', 'app' FROM allocation_claims"
            " ON CONFLICT DO NOTHING"
        )
        await connection.execute("SET LOCAL ROLE hami_reader")

        rows = await connection.fetch(ASKED[CLAIMED])

        assert len({row["pod_name"] for row in rows}) == 2
        assert sorted(row["counted"] for row in rows) == [False, True]
        assert {(row["claim_name"], row["request"], row["share_id"]) for row in rows} == {
            ("card", "gpu", "share")
        }
    finally:
        await entering.rollback()
        await connection.close()


async def test_gpu_hours_are_those_of_the_grants_to_the_second(reader: asyncpg.Connection) -> None:
    """Hours that are summed up and hours that are not, day by day."""
    now: datetime = await reader.fetchval("SELECT now()")
    expected: dict[tuple[str, datetime], float] = defaultdict(float)
    for g in HISTORY:
        end_s = now.timestamp() if g.ended is None else g.ended
        for midnight in made_up.day_span(g.reserved, now):
            day_s = midnight.timestamp()
            seconds = min(end_s, day_s + 86_400) - max(g.reserved, day_s)
            if seconds > 0:
                expected[g.namespace, midnight] += seconds / 3600

    rows = await reader.fetch("SELECT * FROM v_namespace_gpu_hours")

    assert {(row["namespace"], row["day"]) for row in rows} == set(expected)
    live = sum(g.ended is None for g in HISTORY)
    for row in rows:
        hours = expected[row["namespace"], row["day"]]
        assert row["slice_hours"] == pytest.approx(hours, abs=live * 60 / 3600, rel=1e-6)
        share = made_up.SLICE_MIB / made_up.CARD_MIB
        assert row["card_hours_by_memory"] == pytest.approx(row["slice_hours"] * share)


async def test_months_are_the_sums_of_their_hours(reader: asyncpg.Connection) -> None:
    months = await reader.fetch(ASKED["GPU-hours of each month"])

    hours = await reader.fetchval(
        "SELECT sum(slice_s) / 3600 FROM namespace_rollups WHERE bucket_s = 3600"
    )
    full_hour_s = NOW.replace(minute=0, second=0).timestamp()
    expected = sum(
        max(0.0, min(full_hour_s, g.ended or full_hour_s) - g.reserved) / 3600 for g in HISTORY
    )
    total = float(sum(row["slice_hours"] for row in months))
    assert hours == pytest.approx(expected)
    assert total == pytest.approx(expected, abs=0.05 * len(months))


async def test_why_pods_waited_counts_each_pod_once(reader: asyncpg.Connection) -> None:
    rows = await reader.fetch(ASKED["Why did pods wait in the last seven days"])

    expected = Counter(
        made_up.REASONS[g.number // REFUSED_EVERY % len(made_up.REASONS)]
        for g in HISTORY
        if g.number % REFUSED_EVERY == 0
    )
    # The pods of four_days: two wait, one was deleted.
    expected["CardTypeMismatch"] += 3
    assert {row["reason"]: row["pods"] for row in rows} == dict(expected)


async def test_the_pods_of_a_sick_card_are_those_that_were_there_then(
    reader: asyncpg.Connection, filled: Filled
) -> None:
    rows = await reader.fetch(ASKED["Which pods were on a sick card in the last seven days"])

    found = {row["pod_name"] for row in rows if row["device_uuid"] == filled.patient.uuid}
    assert found == {
        g.pod_name for g in HISTORY if g.uuid == filled.patient.uuid and g.ended is None
    }


async def test_a_namespace_without_samples_used_an_unknown_amount(
    reader: asyncpg.Connection,
) -> None:
    rows = await reader.fetch(ASKED["Who was granted more than they used"])

    sampled = await reader.fetch(
        "SELECT DISTINCT namespace FROM usage_rollups"
        " WHERE bucket_s = 3600 AND bucket_start < date_trunc('hour', $1::timestamptz)",
        NOW,
    )
    unknown = {row["namespace"] for row in rows if row["used"] is None}
    assert unknown == {row["namespace"] for row in rows} - {row[0] for row in sampled}


async def test_summing_up_again_changes_nothing(filled: Filled) -> None:
    """But for the last digits of sums, which depend on the order of their parts."""
    connection = await asyncpg.connect(filled.dsn)
    try:
        query = "SELECT * FROM namespace_rollups ORDER BY bucket_s, bucket_start, namespace"
        before = await connection.fetch(query)
        await sum_up_namespaces(connection, NOW)
        after = await connection.fetch(query)
    finally:
        await connection.close()

    assert [tuple(row)[:3] for row in after] == [tuple(row)[:3] for row in before]
    for now, then in zip(after, before, strict=True):
        for column in range(3, len(then)):
            expected = then[column]
            assert now[column] == (expected if expected is None else pytest.approx(expected))
