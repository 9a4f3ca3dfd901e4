"""Capacity and its owners over time: kept by triggers, and adding up to the last microsecond."""

from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import asyncpg
import pytest
from hami_metrics.adapters.capacity import sum_up_capacity, sum_up_showback
from hami_scheduler.adapters.postgres.inventory import PostgresInventory
from hami_scheduler.adapters.postgres.queries import PostgresQueries
from hami_scheduler.adapters.postgres.quotas import PostgresQuotas
from hami_scheduler.ports.ledger import AgentInventory
from hamicommon.domain.devices import GpuDevice, NodeInventory
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.ledger.database import Database, open_database
from hamicommon.ledger.questions import answer
from hamicommon.settings import PostgresSettings
from hypothesis import HealthCheck, given, settings
from pydantic import SecretStr

from tests.integration.db.questions.card_pasts import (
    SPAN_S,
    Held,
    Past,
    pasts,
    whole_and_halves,
)
from tests.integration.db.questions.four_days import NOW, Filled

NODE = NodeName("n")
KINDS = ("held", "idle", "cordoned", "unhealthy", "unknown", "absent")


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator[Database]:
    settings_ = PostgresSettings(dsn=SecretStr(postgres_dsn))
    async with open_database(settings_, application="test") as opened:
        yield opened


def card(number: int = 0, **changes: Any) -> GpuDevice:
    given_: dict[str, Any] = {
        "slots": 4,
        "memory_mib": 1000,
        "core_percent": 100,
        "healthy": True,
        **changes,
    }
    uuid = GpuUuid(f"GPU-{number}")
    return GpuDevice(uuid=uuid, index=number, vendor="NVIDIA", type="NVIDIA A100", **given_)


class Agent:
    """Reports the given inventory."""

    def __init__(self, database: Database) -> None:
        self.inventory = PostgresInventory(database, on_commit=lambda: None)
        self._sequence = 0

    async def report(self, *cards: GpuDevice, at: datetime | None = None) -> None:
        self._sequence += 1
        seen = NodeInventory(node=NODE, devices=cards, observed_at=at or datetime.now(UTC))
        report = AgentInventory(inventory=seen, agent_id="a", sequence=self._sequence)
        assert await self.inventory.record_all([report]) != [None]


async def test_a_cordoned_node_has_no_room_and_its_history_has_it(database: Database) -> None:
    agent = Agent(database)
    await agent.report(card(), card(1))
    await agent.inventory.set_cordoned(NODE, frozenset({"GPU-1"}))

    async def counts() -> tuple[int, int, bool]:
        async with database.connection() as connection:
            [room] = (await answer(connection, "what-fits", {"memory": "500Mi"})).rows
            [node] = (await answer(connection, "nodes", {})).rows
        return room["fitting_count"], node["cordoned_card_count"], node["cordoned"]

    await agent.inventory.set_node(NODE, group=None, unschedulable=False)
    assert await counts() == (2, 1, False)
    await agent.inventory.set_node(NODE, group=None, unschedulable=True)
    assert await counts() == (0, 2, True)
    await agent.report(card(), card(1), card(2))
    assert await counts() == (0, 3, True), "also a card that comes later"
    await agent.inventory.set_node(NODE, group=None, unschedulable=False)
    assert await counts() == (4, 1, False)

    changes = [row["change"] for row in await history(database) if row["device_uuid"] == "GPU-0"]
    assert changes == ["added", "cordoned", "uncordoned"]
    assert [row["cordoned"] for row in await PostgresQueries(database).devices()] == [
        False,
        True,
        False,
    ]


async def history(database: Database) -> list[Any]:
    return await database.fetch("SELECT * FROM v_card_history ORDER BY at, device_uuid")


async def test_every_change_of_a_card_begins_a_period_and_what_is_granted_does_not(
    database: Database,
) -> None:
    agent = Agent(database)
    await agent.report(card())
    await database.fetch(
        "UPDATE devices SET used_slots = 1, used_memory_mib = 5, version = version + 1"
    )
    await agent.report(card())
    await agent.report(card(memory_mib=2000, slots=8))
    await agent.inventory.set_cordoned(NODE, frozenset({"GPU-0"}))
    await agent.inventory.set_cordoned(NODE, frozenset())
    await database.fetch("UPDATE devices SET used_slots = 0, used_memory_mib = 0")
    await agent.report(card(memory_mib=2000, slots=8, healthy=False, health_reason="XID 79"))
    await agent.report(card(memory_mib=2000, slots=8))
    await agent.report()
    await agent.report(card(memory_mib=2000, slots=8), card(1))
    await agent.inventory.mark_gone(NODE)

    rows = await history(database)

    assert [row["change"] for row in rows if row["device_uuid"] == "GPU-0"] == [
        "added",
        "resized",
        "cordoned",
        "uncordoned",
        "sick",
        "recovered",
        "absent",
        "back",
        "absent",
    ]
    added = [row["memory_mib_added"] for row in rows if row["device_uuid"] == "GPU-0"]
    assert added == [1000, 1000, 0, 0, 0, 0, -2000, 2000, -2000]
    assert [row["cards_added"] for row in rows if row["device_uuid"] == "GPU-1"] == [1, -1]
    for uuid in ("GPU-0", "GPU-1"):
        periods = [row for row in rows if row["device_uuid"] == uuid]
        assert all(one["until"] == other["at"] for one, other in pairwise(periods))
        assert periods[-1]["until"] is None


async def test_two_changes_of_one_transaction_are_one_period(database: Database) -> None:
    await Agent(database).report(card())
    async with database.transaction() as connection:
        await connection.execute("UPDATE devices SET memory_mib = 1, ceiling_memory_mib = 5000")
        await connection.execute("UPDATE devices SET memory_mib = 5000")

    assert [row["memory_mib"] for row in await history(database)] == [1000, 5000]


async def test_a_card_that_is_removed_ends_its_last_period(database: Database) -> None:
    await Agent(database).report(card())
    await database.fetch("DELETE FROM device_health_events")
    await database.fetch("DELETE FROM devices")

    [row] = await history(database)
    assert row["until"] is not None


async def test_an_older_transaction_that_commits_later_turns_no_period_round(
    database: Database, postgres_dsn: str
) -> None:
    """The older transaction's now() is before the beginning of the period that it ends."""
    await Agent(database).report(card())
    older = await asyncpg.connect(postgres_dsn)
    try:
        transaction = older.transaction()
        await transaction.start()
        await older.fetchval("SELECT now()")
        await database.fetch("UPDATE devices SET cordoned = true")
        await older.execute("UPDATE devices SET healthy = false")
        await transaction.commit()
    finally:
        await older.close()

    rows = await history(database)
    assert rows[-1]["until"] is None
    assert (rows[-1]["cordoned"], rows[-1]["healthy"]) == (True, False)
    assert all(row["until"] is None or row["until"] >= row["at"] for row in rows)


async def test_a_silent_node_leaves_a_gap_when_it_is_heard_again(database: Database) -> None:
    agent, now = Agent(database), datetime.now(UTC)
    for ago_s in (1000, 970, 600, 560):
        await agent.report(card(), at=now - timedelta(seconds=ago_s))

    [gap] = await database.fetch("SELECT * FROM node_gaps")
    assert (gap["began_at"], gap["ended_at"]) == (
        now - timedelta(seconds=970),
        now - timedelta(seconds=600),
    )


async def test_quotas_are_kept_with_their_times(database: Database) -> None:
    quotas = PostgresQuotas(database, quota_of=lambda _: {})
    memory = "nvidia.com/gpumem"
    for limits in ({memory: 100}, {memory: 100}, {memory: 200}, {}, {memory: 300}):
        await quotas.set_limits("team", limits)
    await database.fetch("UPDATE quotas SET used_amount = 7")

    rows = await database.fetch("SELECT * FROM quota_periods ORDER BY id")
    assert [row["limit_amount"] for row in rows] == [100, 200, 300]
    assert rows[0]["ended_at"] == rows[1]["began_at"]
    assert rows[1]["ended_at"] < rows[2]["began_at"]
    assert rows[2]["ended_at"] is None


def expected_seconds(past: Past) -> Counter[str]:
    """Second by second, as the rules have it."""
    seconds: Counter[str] = Counter()
    for t in range(SPAN_S):
        for kind, share in _kinds(past, t).items():
            seconds[kind] += share
    return seconds


def _kinds(past: Past, t: int) -> dict[str, float]:
    first = past.periods[0]
    if not past.since_known and past.first_seen <= t < first.began:
        return {"unknown": 1}
    found = [p for p in past.periods if p.began <= t and (p.ended is None or t < p.ended)]
    if not found:
        return {}
    [now] = found
    if not now.present:
        return {"absent": 1}
    live = [g for g in past.grants if g[0] <= t and (g[1] is None or t < g[1])]
    held = sum(g[2] for g in live) / now.memory_mib if now.memory_mib else len(live) / 4
    held = min(1.0, held)
    silent_until = SPAN_S * 9 if past.gone is None else past.gone
    unheard = any(b <= t < e for b, e in past.gaps) or (
        past.heard is not None and past.heard <= t < silent_until and silent_until - past.heard > 75
    )
    rest = (
        "unknown"
        if unheard
        else "unhealthy"
        if not now.healthy
        else "cordoned"
        if now.cordoned
        else "idle"
    )
    return {"held": held, rest: 1 - held}


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(pasts())
def test_held_idle_cordoned_unhealthy_unknown_and_absent_add_up_to_the_second(
    empty_dsn: str, past: Past
) -> None:
    wanted = expected_seconds(past)
    for rows in whole_and_halves(empty_dsn, "capacity_between", past):
        found = {kind: sum(row[f"{kind}_s"] for row in rows) for kind in KINDS}
        assert found == {kind: pytest.approx(wanted[kind], abs=1e-6) for kind in KINDS}


async def test_hours_and_days_are_the_sums_of_their_seconds(
    database: Database, postgres_dsn: str
) -> None:
    """Hours that are summed up, and those since, beside an open grant."""
    await Agent(database).report(card(0), card(1, memory_mib=2000))
    now = datetime.now(UTC)
    began = (now - timedelta(hours=30)).replace(minute=20, second=0, microsecond=0)
    await database.fetch(
        "UPDATE device_periods SET began_at = $1, since_known = (device_uuid = 'GPU-0')", began
    )
    first_seen = began - timedelta(minutes=5)
    await database.fetch("UPDATE nodes SET first_seen_at = $1", first_seen)
    await database.fetch(
        "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state,"
        " reserved_at) VALUES (gen_random_uuid(), 'p', 'team', 'p', 1, 'n', 'allocated', $1)",
        began + timedelta(hours=2),
    )
    await database.fetch(
        "INSERT INTO allocation_devices (allocation_id, container_index, position, container_name,"
        " role, device_uuid, vendor, memory_mib, core_percent)"
        " SELECT id, 0, 0, 'a', 'app', 'GPU-0', 'NVIDIA', 250, 0 FROM allocations"
    )
    view = "SELECT * FROM v_capacity_hours ORDER BY day"
    before = await database.fetch(view)
    connection = await asyncpg.connect(postgres_dsn)
    try:
        hours = await sum_up_capacity(connection, now)
        first = await connection.fetch("SELECT * FROM capacity_rollups ORDER BY 2, 1, 3, 4")
        await sum_up_capacity(connection, now)
        again = await connection.fetch("SELECT * FROM capacity_rollups ORDER BY 2, 1, 3, 4")
    finally:
        await connection.close()
    after = await database.fetch(view)

    assert hours >= 30
    assert [tuple(row) for row in first] == [tuple(row) for row in again]
    lived_s = (datetime.now(UTC) - began).total_seconds()
    for rows in (before, after):
        total = {name: sum(row[f"{name}_hours"] for row in rows) * 3600 for name in KINDS}
        assert total["held"] == pytest.approx(0.25 * (lived_s - 7200), abs=30)
        assert total["unknown"] == pytest.approx(300, abs=1)
        assert sum(total.values()) == pytest.approx(2 * lived_s + 300, abs=60)
        assert total["absent"] == 0
    days = {row["day"] for row in before}
    assert days == {row["day"] for row in after}
    assert all(day.astimezone(UTC).hour == 0 for day in days)


BASES = ("memory", "core", "slot")
SLOTS, CORES = 4, 100


def size(held: Held, basis: str, memory_mib: int) -> tuple[int, int]:
    """(counted amount of a grant, capacity of the card)."""
    whole = held.core_percent >= CORES
    if basis == "core":
        return held.core_percent, CORES
    if basis == "slot":
        return (SLOTS if whole else 1), SLOTS
    if not memory_mib:
        return (SLOTS if whole else 1), SLOTS
    return (max(memory_mib, held.memory_mib) if whole else held.memory_mib), memory_mib


def second(past: Past, t: int, basis: str) -> dict[tuple[str, str], float]:
    """(kind, namespace) -> share of the card in that second; empty: it was not there."""
    first = past.periods[0]
    if not past.since_known and past.first_seen <= t < first.began:
        return {("unknown", ""): 1}
    found = [p for p in past.periods if p.began <= t and (p.ended is None or t < p.ended)]
    if not found or not found[0].present:
        return {}
    [card] = found
    live = [g for g in past.grants if g.began <= t and (g.ended is None or t < g.ended)]
    sizes = [size(g, basis, card.memory_mib) for g in live]
    of = max(size(Held(0, 0, 0, 0, ""), basis, card.memory_mib)[1], sum(s for s, _ in sizes))
    shares: Counter[tuple[str, str]] = Counter()
    for grant, (part, _) in zip(live, sizes, strict=True):
        shares["held", grant.namespace] += part / of  # type: ignore[assignment]
    silent_until = SPAN_S * 9 if past.gone is None else past.gone
    unheard = any(b <= t < e for b, e in past.gaps) or (
        past.heard is not None and past.heard <= t < silent_until and silent_until - past.heard > 75
    )
    used_up = {
        "memory": 0 < card.memory_mib <= sum(g.memory_mib for g in live),
        "core": sum(g.core_percent for g in live) >= CORES,
        "slot": len(live) >= SLOTS,
    }
    rest = (
        "unknown"
        if unheard
        else "unhealthy"
        if not card.healthy
        else "cordoned"
        if card.cordoned
        else "stranded"
        if any(full for other, full in used_up.items() if other != basis)
        else "idle"
    )
    shares[rest, ""] += 1 - sum(shares.values())
    return dict(shares)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(pasts())
def test_every_microsecond_of_a_card_is_somebodys_or_accounted_for(
    empty_dsn: str, past: Past
) -> None:
    """Oversubscription, cards that shrank, health that comes and goes, gaps, and any cut."""
    answers = whole_and_halves(empty_dsn, "showback_between", past)
    for basis in BASES:
        wanted: Counter[tuple[str, str]] = Counter()
        there_us = 0
        for t in range(SPAN_S):
            shares = second(past, t, basis)
            there_us += 1_000_000 if shares else 0
            wanted.update(shares)
        for rows in answers:
            found: Counter[tuple[str, str]] = Counter()
            for row in rows:
                found[row["kind"], row["namespace"]] += row[f"{basis}_us"]
            assert sum(found.values()) == there_us
            assert min(found.values(), default=0) >= 0
            for key in {*wanted, *found}:
                assert found[key] / 1e6 == pytest.approx(wanted[key], abs=1e-4), (basis, key)


@pytest.mark.parametrize("basis", ["memory", "cores", "slots", "mixed"])
async def test_the_rows_of_a_bill_are_the_hours_of_the_cards_to_the_second(
    filled: Filled, basis: str
) -> None:
    """Whole days, whole hours and the rest not summed up yet; a second run changes nothing."""
    connection = await asyncpg.connect(filled.dsn)
    asked = {
        "basis": basis,
        "weight": "30%",
        "since": NOW - timedelta(days=3, hours=5, minutes=7, seconds=11),
        "until": NOW - timedelta(seconds=3),
    }
    try:
        answers = []
        for _ in range(2):
            rows = (await answer(connection, "showback", asked)).rows
            sums = (await answer(connection, "showback-sum", asked)).rows
            answers.append((rows, [{**row, "summed_at": None} for row in sums]))
            hour = datetime.now(UTC)
            await sum_up_showback(connection, hour)
        page = await answer(connection, "showback", asked, limit=2)
        following = await answer(connection, "showback", asked, limit=500, after=page.next)
    finally:
        await connection.close()

    rows, sums = answers[0]
    assert answers[1] == answers[0]
    assert (*page.rows, *following.rows) == rows
    (total,) = [row for row in sums if row["type"] == ""]
    assert all(row["agrees"] for row in sums)
    assert sum(row["card_s"] for row in rows) == total["card_s"]
    for kind in ("held", "idle", "stranded", "cordoned", "unhealthy", "unknown"):
        of_kind = sum(row["card_s"] for row in rows if row["kind"] == kind)
        assert abs(of_kind - total[f"{kind}_s"]) <= 1
    assert sum(value for key, value in total.items() if key.endswith("_s")) == 2 * total["card_s"]
    assert total["card_s"] == 800 * int((asked["until"] - asked["since"]).total_seconds())
