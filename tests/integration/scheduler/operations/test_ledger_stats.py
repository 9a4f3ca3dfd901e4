"""Figures of the ledger that the scheduler publishes for the webhook."""

from __future__ import annotations

import pytest
from hami_scheduler.adapters.postgres.queries import PostgresLedgerStats

from tests.integration.scheduler.world import World

pytestmark = pytest.mark.integration


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
