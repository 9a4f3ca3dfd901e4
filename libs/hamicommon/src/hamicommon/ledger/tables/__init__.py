"""Definitions of all tables; a test checks that the migrations create exactly these.

Who writes what: scheduler replicas write nodes, devices, allocations and what hangs on them; the
metrics service writes usage and refusals. Memory is MiB and cores are percent unless a name has
another unit. Constraint names are part of the contract (`columns.py`).
"""

from __future__ import annotations

from hamicommon.ledger.tables import (
    audit,
    capacity,
    cards,
    grants,
    limits,
    records,
    scaling,
    usage,
)
from hamicommon.ledger.tables.columns import metadata

__all__ = [
    "audit",
    "capacity",
    "cards",
    "grants",
    "limits",
    "metadata",
    "records",
    "scaling",
    "usage",
]
