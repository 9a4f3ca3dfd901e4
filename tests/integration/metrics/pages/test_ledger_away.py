"""Pages of a ledger that is away, was never read, or is locked."""

from __future__ import annotations

from typing import Any

import pytest

from bench.pages.ledger import fill
from tests.integration.metrics.pages.running import pages, text
from tests.waiting import eventually

pytestmark = pytest.mark.integration


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
        assert "that is unknown, not empty" in shown
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
