"""A ledger with one node and one card."""

import asyncpg

ID = "00000000-0000-4000-8000-{:012}"


async def connect_with_a_card(dsn: str) -> asyncpg.Connection:
    """A connection to the ledger, in which node `n` has card `GPU-1` by now."""
    opened = await asyncpg.connect(dsn)
    await opened.execute(
        "INSERT INTO nodes (name) VALUES ('n'); INSERT INTO devices (uuid, node, vendor, index,"
        " type, slots, memory_mib, core_percent, ceiling_slots, ceiling_memory_mib,"
        " ceiling_core_percent, healthy) VALUES"
        " ('GPU-1', 'n', 'NVIDIA', 0, 'A100', 9, 1000, 100, 9, 1000, 100, true)"
    )
    return opened
