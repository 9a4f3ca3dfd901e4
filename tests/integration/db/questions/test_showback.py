"""Owners of the cards' time: to the last microsecond, whatever happened."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from hami_metrics.adapters.capacity import sum_up_showback
from hamicommon.ledger.questions import answer
from hypothesis import HealthCheck, given, settings

from tests.integration.db.questions.card_pasts import (
    SPAN_S,
    Held,
    Past,
    pasts,
    whole_and_halves,
)
from tests.integration.db.questions.four_days import NOW, Filled

pytestmark = pytest.mark.integration

BASES = ("memory", "core", "slot")
SLOTS, CORES = 4, 100


def size(held: Held, basis: str, memory_mib: int) -> tuple[int, int]:
    """(what counts of a grant, what the card has)."""
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
    """Whole days, whole hours and what is not summed up yet; summing up again changes nothing."""
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
