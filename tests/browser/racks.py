"""Racks for the nodes of a generated cluster: neighbours by name stand in different ones."""

from tests.servers import psql

NODES_OF_A_RACK = 40
MIN_RACKS = 2
"""Racks of a cluster that would fit in one."""


def stand_in_racks(dsn: str, nodes: int) -> None:
    """Write node groups as the scheduler does; the last node of a large cluster has none."""
    racks = max(MIN_RACKS, nodes // NODES_OF_A_RACK)
    psql(
        dsn,
        f"UPDATE nodes SET node_group = 'rack-' || lpad((1 + substr(name, 2)::int % {racks})::text,"
        " 2, '0')",
    )
    if nodes > NODES_OF_A_RACK:
        psql(dsn, f"UPDATE nodes SET node_group = NULL WHERE name = 'n{nodes:04}'")
