"""Refusals at admission: each counted once, in few rows, whatever a user does."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from hami_metrics.adapters import refusals as adapter
from hami_metrics.adapters.refusals import PostgresRefusalStore
from hami_metrics.refusals import MAX_GROUPS, AdmissionRefusal, refusal_of
from hamicommon.errors import Conflict
from hamicommon.events import AdmissionRefused
from hamicommon.ledger.pool import open_pool
from hamicommon.settings import PostgresSettings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from tests.waiting import PATIENCE_S

NOW = datetime(2026, 1, 5, 10, tzinfo=UTC)


@pytest.fixture
async def pool(postgres_dsn: str) -> AsyncIterator[asyncpg.Pool]:
    async with open_pool(PostgresSettings(dsn=SecretStr(postgres_dsn)), "test") as opened:
        yield opened


def refusal(uid: str, **changes: Any) -> AdmissionRefusal:
    given_: dict[str, Any] = {
        "at": NOW,
        "username": "alice",
        "groups": ("system:authenticated",),
        "namespace": "team",
        "pod_name": "train-*",
        "owner_kind": "Job",
        "owner_name": "train",
        "service_account": "default",
        "operation": "CREATE",
        "reason": "privileged",
        "message": "container c is privileged",
        **changes,
    }
    return AdmissionRefusal(review_uid=uid, **given_)


async def rows(pool: asyncpg.Pool) -> list[Any]:
    return list(await pool.fetch("SELECT * FROM admission_refusals ORDER BY id"))


async def test_the_same_again_is_counted_and_a_repeated_delivery_is_not(
    pool: asyncpg.Pool,
) -> None:
    store = PostgresRefusalStore(pool)
    for uid in ("a", "b", "a", "c", "b"):
        await store.write(refusal(uid, at=NOW + timedelta(minutes=ord(uid) - ord("a"))))

    [row] = await rows(pool)
    assert (row["repeat_count"], row["username"], row["groups"]) == (
        3,
        "alice",
        ["system:authenticated"],
    )
    assert (row["at"], row["last_at"]) == (NOW, NOW + timedelta(minutes=2))


@pytest.mark.parametrize(
    "other",
    [
        {"username": "bob"},
        {"namespace": "other"},
        {"pod_name": "serve"},
        {"owner_name": "other"},
        {"service_account": "admin"},
        {"operation": "UPDATE ephemeralcontainers"},
        {"reason": "over-quota"},
        {"message": "container d is privileged"},
        {"at": NOW + timedelta(hours=2)},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_what_differs_is_a_row_of_its_own(pool: asyncpg.Pool, other: dict[str, Any]) -> None:
    store = PostgresRefusalStore(pool)
    await store.write(refusal("a"))
    await store.write(refusal("b", **other))

    assert [row["repeat_count"] for row in await rows(pool)] == [1, 1]


async def test_a_user_who_changes_every_text_fills_a_bounded_number_of_rows(
    pool: asyncpg.Pool,
) -> None:
    store = PostgresRefusalStore(pool)
    for number in range(adapter.MAX_ROWS + 25):
        await store.write(refusal(f"u{number}", message=f"{number}" * 50))
    await store.write(refusal("victim", username="bob"))

    mine = [row for row in await rows(pool) if row["username"] == "alice"]
    assert len(mine) == adapter.MAX_ROWS
    assert sum(row["repeat_count"] + row["other_count"] for row in mine) == adapter.MAX_ROWS + 25
    assert mine[-1]["other_count"] == 25
    assert [row["repeat_count"] for row in await rows(pool) if row["username"] == "bob"] == [1]


async def test_all_users_together_fill_a_bounded_number_of_rows(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter, "MAX_ROWS_OF_ALL", 10)
    store = PostgresRefusalStore(pool)
    for number in range(30):
        await store.write(refusal(f"u{number}", username=f"user-{number}"))
        await store.write(refusal(f"u{number}", username=f"user-{number}"))

    found = await rows(pool)
    assert len(found) == 11
    assert (found[-1]["username"], found[-1]["reason"]) == ("", "not-kept")
    assert sum(row["repeat_count"] + row["other_count"] for row in found) == 30


async def test_two_replicas_make_one_row(pool: asyncpg.Pool) -> None:
    async def write(uid: str) -> None:
        """Write as the bus delivers: again, while another writer has its turn."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(Conflict):
                    await PostgresRefusalStore(pool).write(refusal(uid))
                    return

    async with asyncio.TaskGroup() as writing:
        for number in range(8):
            writing.create_task(write(str(number % 4)))

    assert [row["repeat_count"] for row in await rows(pool)] == [4]


hostile = st.text(st.characters(codec=None), max_size=400)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.sampled_from(("alice", "bob")), hostile), max_size=12
    ),
    st.randoms(use_true_random=False),
)
async def test_deliveries_in_any_order_and_number_count_each_review_once(
    pool: asyncpg.Pool, reviews: list[tuple[int, str, str]], chance: Any
) -> None:
    await pool.execute("DELETE FROM admission_refusals")
    events = {
        number: AdmissionRefused(
            review_uid=f"r{number}",
            namespace="team",
            pod_name=text.encode(errors="replace").decode(),
            user=user,
            groups=tuple(f"g{n}" for n in range(40)),
            reason="privileged",
            said=text.encode(errors="replace").decode(),  # codespell:ignore said
            at=NOW + timedelta(seconds=number),
        )
        for number, user, text in reviews
    }
    deliveries = [number for number in events for _ in range(chance.randint(1, 3))]
    chance.shuffle(deliveries)
    store = PostgresRefusalStore(pool)
    new: Counter[bool] = Counter()
    for number in deliveries:
        new[await store.write(refusal_of(events[number]))] += 1

    found = await rows(pool)
    assert new[True] == len(events) == sum(row["repeat_count"] for row in found)
    by_user = Counter(event.user for event in events.values())
    for user, count in by_user.items():
        assert sum(row["repeat_count"] for row in found if row["username"] == user) == count
    assert all(len(row["groups"]) == MAX_GROUPS for row in found)


async def test_old_ones_go_and_the_others_stay(pool: asyncpg.Pool) -> None:
    store = PostgresRefusalStore(pool)
    for days in range(10):
        await store.write(refusal(f"d{days}", at=NOW - timedelta(days=days)))

    assert await store.forget(NOW - timedelta(days=4)) == 5
    assert len(await rows(pool)) == 5
    assert await store.forget(NOW - timedelta(days=4)) == 0
