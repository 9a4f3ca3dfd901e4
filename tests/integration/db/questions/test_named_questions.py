"""Named questions are answered page by page; some are recomputed in Python."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from hami_metrics.adapters.namespaces import sum_up_namespaces
from hamicommon.errors import InvalidRequest, NotFound, Unavailable
from hamicommon.ledger.questions import Answer, ColumnKind, answer, answering, questions

from bench.pages import made_up
from tests.integration.db.questions.four_days import HISTORY, NOW, Filled

PYTHON_TYPES: dict[ColumnKind, tuple[type, ...]] = {
    ColumnKind.TEXT: (str,),
    ColumnKind.TIME: (datetime,),
    ColumnKind.SECONDS: (int, float),
    ColumnKind.BYTES: (int,),
    ColumnKind.RATIO: (int, float),
    ColumnKind.COUNT: (int,),
    ColumnKind.BOOLEAN: (bool,),
    ColumnKind.COUNTS: (dict,),
    ColumnKind.AMOUNT: (int,),
}
ENDED = next(g for g in HISTORY if g.ended is not None and g.number > 1000)


def what_is_needed(name: str) -> dict[str, object]:
    """Parameters without which a question is not answered."""
    asked = questions()[name]
    have = {
        "pod_uid": ENDED.pod_uid,
        "card": ENDED.uuid,
        "node": ENDED.node,
        "namespace": ENDED.namespace,
    }
    wanted = {each.name for each in asked.parameters if each.required}
    wanted |= {key for key in ("pod_uid", "card") if frozenset({key}) in asked.needs}
    return {key: have[key] for key in wanted}


async def all_pages(reader: asyncpg.Connection, name: str, given: dict[str, object]) -> Answer:
    """Return all pages as one."""
    page = await answer(reader, name, given, limit=7)
    rows, as_of = list(page.rows), page.as_of
    for _ in range(3):
        if page.next is None:
            break
        page = await answer(reader, name, given, limit=7, after=page.next)
        assert page.as_of == as_of
        rows += page.rows
    whole = await answer(reader, name, given, limit=28)
    if page.as_of == as_of:
        return Answer(
            question=whole.question, as_of=as_of, parameters=whole.parameters, rows=tuple(rows)
        )
    raise AssertionError


@pytest.mark.parametrize("name", list(questions()))
async def test_a_question_is_answered_as_it_is_declared(
    reader: asyncpg.Connection, name: str
) -> None:
    """Columns and their types, the order, and consecutive pages."""
    asked = questions()[name]

    found = await all_pages(reader, name, what_is_needed(name))

    for row in found.rows:
        assert list(row) == [column.name for column in asked.columns]
        for column in asked.columns:
            value = row[column.name]
            if value is None:
                assert column.unknown or column.none, column.name
            else:
                assert isinstance(value, PYTHON_TYPES[column.kind]), (column.name, value)
    keys = [tuple(row[name] for name in asked.key) for row in found.rows]
    assert len(set(keys)) == len(keys)
    numbers = [
        key for key in keys if not any(isinstance(part, str) for part in key)
    ]  # texts are in the order of the database's collation
    assert numbers == sorted(numbers, reverse=asked.descending)


async def test_what_runs_where_is_what_was_held_then(reader: asyncpg.Connection) -> None:
    at = NOW - timedelta(days=1)

    found = await answer(reader, "what-runs-where", {"at": at}, limit=10_000)

    there = {
        (g.pod_name, g.uuid)
        for g in HISTORY
        if g.reserved <= at.timestamp() and (g.ended is None or g.ended > at.timestamp())
    }
    assert {(row["pod_name"], row["device_uuid"]) for row in found.rows} == there
    assert {row["memory_bytes"] for row in found.rows} == {made_up.SLICE_MIB << 20}
    assert {row["core_ratio"] for row in found.rows} == {made_up.SLICE_CORES / 100}


async def test_cards_and_nodes_add_up_to_what_runs_where(reader: asyncpg.Connection) -> None:
    at = NOW - timedelta(hours=30)

    slices = (await answer(reader, "what-runs-where", {"at": at}, limit=10_000)).rows
    cards = (await answer(reader, "cards", {"at": at}, limit=10_000)).rows
    nodes = (await answer(reader, "nodes", {"at": at}, limit=10_000)).rows

    held = sum(row["memory_bytes"] for row in slices)
    assert len(cards) == made_up.NODES * made_up.CARDS_PER_NODE
    assert sum(row["held_memory_bytes"] for row in cards) == held
    assert sum(row["held_memory_bytes"] for row in nodes) == held
    assert sum(row["pod_count"] for row in cards) == len(slices)
    assert {row["used_memory_bytes"] for row in cards} == {None}


async def test_who_held_a_card_are_those_who_overlapped(reader: asyncpg.Connection) -> None:
    since, until = NOW - timedelta(days=2), NOW - timedelta(days=1)
    given = {"card": ENDED.uuid, "since": since, "until": until}

    found = await answer(reader, "who-held-card", given, limit=10_000)

    assert {row["pod_name"] for row in found.rows} == {
        g.pod_name
        for g in HISTORY
        if g.uuid == ENDED.uuid
        and g.reserved < until.timestamp()
        and (g.ended is None or g.ended > since.timestamp())
    }


async def test_what_fits_is_the_sum_over_cards(reader: asyncpg.Connection) -> None:
    wanted: dict[str, object] = {"memory": "50Gi", "cores": "30%"}

    fits = await answer(reader, "what-fits", wanted)
    cards = await answer(reader, "cards", {}, limit=10_000)

    free = [
        (
            (row["memory_bytes"] - row["held_memory_bytes"]) // (50 << 30),
            int((row["core_ratio"] - row["held_core_ratio"]) / 0.3 + 1e-9),
            row["slot_count"] - row["held_slot_count"],
        )
        for row in cards.rows
        if row["healthy"] and not row["cordoned"]
    ]
    assert fits.rows[0]["fitting_count"] == sum(max(0, min(each)) for each in free)
    assert fits.rows[0]["card_count"] == sum(min(each) > 0 for each in free)


async def test_who_held_and_did_nothing_is_who_used_no_core(reader: asyncpg.Connection) -> None:
    """By namespace, from the samples of the same hours; a slice counts while it was held."""
    until = NOW.replace(minute=0, second=0)
    since = until - timedelta(hours=2)
    rows = (await answer(reader, "idle-held", {"since": since, "until": until}, limit=1000)).rows

    hours = await reader.fetch(
        "SELECT pod_uid, bucket_start FROM usage_rollups WHERE bucket_s = 3600 AND pod_uid <> ''"
        " AND core_percent_max = 0 AND bucket_start >= $1 AND bucket_start < $2",
        since,
        until,
    )
    grants = {g.pod_uid: g for g in HISTORY}
    expected = 0.0
    for row in hours:
        grant, start = grants[row["pod_uid"]], row["bucket_start"].timestamp()
        expected += min(grant.ended or start + 3600, start + 3600) - max(grant.reserved, start)
    assert {row["namespace"] for row in rows} == {"team-02"}
    assert sum(row["idle_s"] for row in rows) == pytest.approx(expected, abs=len(rows) + 1)


@pytest.mark.parametrize("long", [timedelta(hours=2), timedelta(days=3)], ids=["hours", "days"])
async def test_idle_time_of_a_namespaces_sums_is_that_of_its_owners(
    reader: asyncpg.Connection, long: timedelta
) -> None:
    """A bill takes the sums; whole days, as the sums of longer times are of days."""
    until = NOW.replace(minute=0, second=0)
    since = until - long
    if long >= timedelta(days=2):
        since = since.replace(hour=0)
    span = {"since": since, "until": until}

    sums = (await answer(reader, "namespace-use", span, limit=1000)).rows
    owners = (await answer(reader, "idle-held", span, limit=1000)).rows

    expected: dict[str, float] = {}
    for row in owners:
        expected[row["namespace"]] = expected.get(row["namespace"], 0) + row["idle_s"]
    found = {row["namespace"]: row["idle_s"] for row in sums if row["idle_s"]}
    assert found == pytest.approx(expected, abs=2)
    assert found


async def test_idle_time_of_before_its_column_is_filled_and_until_then_unknown(
    filled: Filled,
) -> None:
    connection = await asyncpg.connect(filled.dsn)
    until = NOW.replace(minute=0, second=0)
    span = {"since": (until - timedelta(days=3)).replace(hour=0), "until": until}
    try:
        before = (await answer(connection, "namespace-use", span, limit=1000)).rows
        await connection.execute("UPDATE namespace_rollups SET idle_s = NULL")
        unknown = (await answer(connection, "namespace-use", span, limit=1000)).rows
        await sum_up_namespaces(connection, NOW)
        after = (await answer(connection, "namespace-use", span, limit=1000)).rows
    finally:
        await connection.close()

    assert {row["idle_s"] for row in unknown if row["sample_count"]} == {None}
    assert [row["idle_s"] for row in after] == pytest.approx([row["idle_s"] for row in before])
    assert any(row["idle_s"] for row in after)


async def test_nothing_is_written_and_nothing_takes_longer_than_allowed(
    reader: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement is ended by the server; the connection is as it was before."""
    before = await reader.fetchval("SELECT current_setting('statement_timeout')")
    slow = "SELECT 1 AS node FROM pg_sleep(600)"
    monkeypatch.setattr(answering, "statement", lambda *_: (slow, []))
    began = time.monotonic()

    with pytest.raises(Unavailable, match="nodes took longer than 2 s"):
        await answer(reader, "nodes", {})

    assert time.monotonic() - began < 60
    monkeypatch.setattr(
        answering, "statement", lambda *_: ("INSERT INTO nodes (name) VALUES ('x')", [])
    )
    with pytest.raises(Unavailable, match="in a read-only transaction"):
        await answer(reader, "nodes", {})
    assert await reader.fetchval("SELECT current_setting('statement_timeout')") == before
    assert await reader.fetchval("SELECT current_user = session_user")


@pytest.mark.parametrize(
    ("name", "given", "more", "sentence"),
    [
        ("nodes", {"nod": "x"}, {}, "nodes has no parameter 'nod'; it takes at, node"),
        ("who-held-card", {}, {}, "who-held-card wants card or node"),
        ("why-waiting", {"pod": "x"}, {}, "wants pod_uid or namespace and pod"),
        ("drift", {"since": "-1h", "until": "-2h"}, {}, "parameter since: .* is not before"),
        ("nodes", {"at": "soon"}, {}, "parameter at is 'soon': use 2026"),
        ("what-fits", {"memory": "8GB"}, {}, "parameter memory is '8GB': use 8Gi"),
        ("usage-series", {}, {}, "parameter node is missing: the node's name"),
        ("nodes", {}, {"limit": 0}, "limit: 0 is not a number of rows"),
        ("nodes", {}, {"after": "ab"}, "after: this key is not from nodes"),
        ("nodes", {}, {"after": "W10="}, "after: this key is not from nodes"),
    ],
)
async def test_a_mistake_is_one_clear_sentence(
    reader: asyncpg.Connection,
    name: str,
    given: dict[str, object],
    more: dict[str, Any],
    sentence: str,
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        await answer(reader, name, given, **more)


async def test_names_from_callers_are_values_and_never_sql(reader: asyncpg.Connection) -> None:
    hostile = "'; DROP TABLE nodes; --"

    with pytest.raises(NotFound, match="has no node '; DROP"):
        await answer(reader, "nodes", {"node": hostile})
    assert (await answer(reader, "nodes", {"at": datetime.now(UTC)})).rows


async def test_an_empty_answer_is_of_something_known_and_of_a_time_that_was_recorded(
    reader: asyncpg.Connection,
) -> None:
    for name, given in (
        ("cards", {"card": "GPU-nope"}),
        ("who-held-card", {"card": "GPU-nope"}),
        ("what-runs-where", {"node": "n-nope"}),
        ("usage-series", {"node": "n-nope"}),
        ("cards", {"type": "H999"}),
        ("pod-steps", {"pod_uid": "nope"}),
        ("pod-usage", {"namespace": "team-01", "pod": "nope"}),
    ):
        with pytest.raises(NotFound, match=r"the ledger has no .* ?(nope|H999)"):
            await answer(reader, name, given)
    with pytest.raises(InvalidRequest, match="is in the future"):
        await answer(reader, "cards", {"at": "2999-01-01"})

    before = await answer(reader, "what-runs-where", {"card": ENDED.uuid, "at": "2001-01-01"})
    known = await answer(reader, "why-waiting", {"pod_uid": "w", "at": "now"})

    assert before.rows == ()
    assert before.record_began_at is not None
    assert before.record_began_at <= NOW
    assert known.record_began_at is None


async def test_what_a_pod_uses_is_the_sum_of_its_newest_samples_and_else_unknown(
    reader: asyncpg.Connection,
) -> None:
    live = [grant for grant in HISTORY if grant.ended is None][:2]
    sample = (
        "INSERT INTO usage_samples (sampled_at, node, device_uuid, pod_uid, namespace, pod_name,"
        " container, memory_used_bytes, core_percent) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
    )
    transaction = reader.transaction(isolation="repeatable_read")
    await transaction.start()
    try:
        [container] = {
            row["container_name"]
            for row in await reader.fetch("SELECT DISTINCT container_name FROM allocation_devices")
        }
        # The made-up samples end just now.
        uids = [grant.pod_uid for grant in live]
        await reader.execute("DELETE FROM usage_samples WHERE pod_uid = ANY($1)", uids)
        one = live[0]
        named = (one.node, one.uuid, one.pod_uid, one.namespace, one.pod_name, container)
        for age_s, memory_bytes in ((40, 7 << 20), (20, 5 << 20)):
            at = datetime.now(UTC) - timedelta(seconds=age_s)
            await reader.execute(sample, at, *named, memory_bytes, 12.0)

        rows = (await answer(reader, "pod-use", {}, limit=10_000)).rows
    finally:
        await transaction.rollback()

    used = {row["pod_uid"]: row for row in rows}
    assert used.keys() == {grant.pod_uid for grant in HISTORY if grant.ended is None}
    assert (used[live[0].pod_uid]["used_memory_bytes"], used[live[0].pod_uid]["card_count"]) == (
        5 << 20,
        1,
    )
    assert used[live[0].pod_uid]["used_core_ratio"] == pytest.approx(0.12)
    assert used[live[0].pod_uid]["memory_bytes"] == made_up.SLICE_MIB << 20
    assert used[live[1].pod_uid]["used_memory_bytes"] is None
    assert used[live[1].pod_uid]["sampled_at"] is None
