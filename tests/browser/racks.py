"""Racks for the nodes of a generated cluster: neighbours by name stand in different ones."""

from __future__ import annotations

from tests.servers import psql

NODES_OF_A_RACK = 40
FEWEST_RACKS = 2
"""Of a cluster that one rack would hold."""


def stand_in_racks(dsn: str, nodes: int) -> None:
    """As the scheduler writes them down; of a large cluster the last node has none."""
    racks = max(FEWEST_RACKS, nodes // NODES_OF_A_RACK)
    psql(
        dsn,
        f"UPDATE nodes SET node_group = 'rack-' || lpad((1 + substr(name, 2)::int % {racks})::text,"
        " 2, '0')",
    )
    if nodes > NODES_OF_A_RACK:
        psql(dsn, f"UPDATE nodes SET node_group = NULL WHERE name = 'n{nodes:04}'")
