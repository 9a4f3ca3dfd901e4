"""Readings of the ledger by the pages: changes since the last one, and an unavailable ledger."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from hami_metrics.adapters.ledger import PostgresLedger
from hami_metrics.pages.cluster import PageCard, PageCluster
from hami_metrics.pages.feed import Feed
from hami_metrics.pages.readings import (
    SCHEDULER,
    PagesLedger,
    read_cards,
    read_marks,
    read_schedulers,
)
from hamicommon.ledger.connection import connect
from hamicommon.ledger.database import Database, open_database
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

from bench.pages.ledger import fill
from tests.integration.metrics.pages.running import pages, text
from tests.waiting import eventually


@pytest.fixture
async def database(postgres_dsn: str, db: Any) -> AsyncIterator[Database]:
    await fill(db, nodes=2, cards=4, pods=8)
    settings = PostgresSettings(dsn=SecretStr(postgres_dsn))
    async with open_database(settings, application="test") as opened:
        yield opened


class Readings:
    """Readings of one feed; each is a new one, however soon after the other."""

    def __init__(self, database: Database) -> None:
        self._now = datetime.now(UTC)
        self._feed = Feed(PagesLedger(database), lambda: self._now, Bulkhead())

    async def next(self) -> PageCluster:
        self._now += timedelta(seconds=5)
        look = await self._feed.look()
        assert look.trouble is None
        assert look.state is not None
        return look.state

    async def card(self, node: str, index: int) -> PageCard:
        found = {card.index: card for card in (await self.next()).nodes[node].cards}
        return found[index]


async def write(db: Any, node: str, index: int, change: str) -> None:
    await db.execute(
        f"UPDATE devices SET {change}, updated_at = now() WHERE node = $1 AND index = $2",
        node,
        index,
    )


async def test_what_was_written_is_read_once_although_readings_overlap(
    database: Database, db: Any
) -> None:
    since = datetime.now(UTC) - timedelta(minutes=1)
    newest = await db.fetchval("SELECT max(id) FROM allocation_events")
    async with PagesLedger(database).look() as connection:
        before = await read_marks(connection, since, newest)
    await write(db, "n0001", 1, "cordoned = true")
    async with PagesLedger(database).look() as connection:
        marks = await read_marks(connection, since, newest)
        cards = await read_cards(connection, marks - before)
        assert await read_marks(connection, since, newest) == marks
        assert await read_cards(connection, frozenset()) == []

    assert before
    assert [(card.node, card.index, card.cordoned) for card in cards] == [("n0001", 1, True)]
    assert [holder.pod_name for card in cards for holder in card.holders]


async def test_a_cordoned_node_shows_cordoned_cards_until_it_is_open_again(
    database: Database, db: Any
) -> None:
    readings = Readings(database)
    ledger = PostgresLedger(database._pool)
    assert not (await readings.card("n0001", 1)).cordoned

    for cordoned in (True, False):
        await db.execute("UPDATE nodes SET unschedulable = $1 WHERE name = 'n0001'", cordoned)
        found = await readings.next()
        of_metrics = (await ledger.snapshot()).cards
        for cards in (list(found.cards()), of_metrics):
            assert {card.cordoned for card in cards if card.node == "n0001"} == {cordoned}
            assert {card.cordoned for card in cards if card.node == "n0002"} != {cordoned}


async def test_a_transaction_that_commits_after_newer_ones_is_taken_in(
    database: Database, db: Any, postgres_dsn: str
) -> None:
    readings = Readings(database)
    await readings.next()
    slow = await asyncpg.connect(postgres_dsn)
    try:
        async with slow.transaction():
            await write(slow, "n0001", 0, "cordoned = true")
            await write(db, "n0001", 1, "cordoned = true")
            assert (await readings.card("n0001", 1)).cordoned
            assert not (await readings.card("n0001", 0)).cordoned
    finally:
        await slow.close()

    assert (await readings.card("n0001", 0)).cordoned


async def test_a_grant_whose_state_alone_changed_is_read_with_its_card(
    database: Database, db: Any
) -> None:
    readings = Readings(database)
    before = await readings.card("n0002", 2)
    await readings.next()
    pod = before.holders[0].pod_uid
    await db.execute(
        "WITH found AS (UPDATE allocations SET state = 'releasing' WHERE pod_uid = $1 RETURNING id)"
        " INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state,"
        " reason, actor, at) SELECT $1, 2, id, 'reserved', 'releasing', '', 'test', now()"
        " FROM found",
        pod,
    )

    after = await readings.card("n0002", 2)

    assert {holder.pod_uid: holder.state for holder in after.holders}[pod] == "releasing"


async def test_a_node_that_comes_back_has_all_its_cards_at_once(
    database: Database, db: Any
) -> None:
    readings = Readings(database)
    whole = (await readings.next()).nodes["n0002"].cards
    await db.execute("UPDATE nodes SET gone_at = now() WHERE name = 'n0002'")
    assert list((await readings.next()).nodes) == ["n0001"]
    await readings.next()
    await db.execute("UPDATE nodes SET gone_at = NULL WHERE name = 'n0002'")

    assert (await readings.next()).nodes["n0002"].cards == whole


async def test_a_card_that_leaves_or_goes_to_another_node_is_no_longer_where_it_was(
    database: Database, db: Any
) -> None:
    readings = Readings(database)
    await readings.next()
    await write(db, "n0001", 3, "present = false")
    await write(db, "n0001", 2, "node = 'n0002', index = 4")

    nodes = (await readings.next()).nodes

    assert [card.index for card in nodes["n0001"].cards] == [0, 1]
    assert [card.index for card in nodes["n0002"].cards] == [0, 1, 2, 3, 4]


async def test_while_the_ledger_is_away_the_last_state_is_shown_with_its_date(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=2)
    async with pages(postgres_dsn, nats_url) as (_, http):

        async def fresh() -> bool:
            return "Ledger unreachable" not in await text(http, "/")

        await eventually(fresh, "the page of the present state")
        await db.execute("ALTER TABLE nodes RENAME TO nodes_away")

        async def stale() -> bool:
            shown = await text(http, "/")
            return "Ledger unreachable since" in shown and "n0001 card 0" in shown

        await eventually(stale, "the page that shows its last state")
        # What only that page reads of the ledger may be there; its state is as old as the others'.
        assert "Running pods are not affected" in await text(http, "/nodes/n0001/cards/0")
        await db.execute("ALTER TABLE nodes_away RENAME TO nodes")

        await eventually(fresh, "the page of the present state")


async def test_a_ledger_that_was_never_read_is_unknown_and_not_empty(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await db.execute("ALTER TABLE nodes RENAME TO nodes_away")
    async with pages(postgres_dsn, nats_url) as (_, http):
        shown = await text(http, "/", 503)
        assert "There is no earlier state to show" in shown
        assert "No GPU nodes" not in shown


async def test_a_locked_table_delays_no_page_for_long(
    postgres_dsn: str, nats_url: str, db: Any
) -> None:
    await fill(db, nodes=1, cards=2, pods=2)
    async with pages(postgres_dsn, nats_url) as (_, http):
        await text(http, "/")
        async with db.transaction():
            await db.execute("LOCK TABLE devices IN ACCESS EXCLUSIVE MODE")

            async def stale() -> bool:
                return "Ledger unreachable since" in await text(http, "/")

            await eventually(stale, "the page of the last state")


async def test_connections_are_counted_and_the_last_use_is_known(
    postgres_dsn: str, db: Any
) -> None:
    settings = PostgresSettings(dsn=SecretStr(postgres_dsn))
    before = await read_schedulers(db)
    assert (before.connections, before.used_at) == (0, None)
    scheduler = await connect(settings, application=SCHEDULER)
    try:
        first = await read_schedulers(db)
        await scheduler.fetchval("SELECT 1")
        second = await read_schedulers(db)
    finally:
        await scheduler.close()

    assert first.connections == 1
    assert first.used_at is not None
    assert second.used_at is not None
    assert second.used_at > first.used_at
