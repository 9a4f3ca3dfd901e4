"""Tables of nodes' findings about exceeded limits; written by the scheduler."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, Table, Text, text

from hamicommon.ledger.tables.columns import (
    MAX_COUNTER,
    at,
    count,
    metadata,
    number,
    period,
    required_column,
    texts,
)

limit_checks = Table(
    "limit_checks",
    metadata,
    Column("node", Text, primary_key=True),
    required_column("agent_id", Text),
    required_column("sequence", BigInteger),
    at("checked_at"),
    count("containers"),
    CheckConstraint(f"sequence BETWEEN 0 AND {MAX_COUNTER}", name="sequence_bounded"),
)
"""Last check of each node; without a recent one its containers' limits are unknown.

`checked_at` is when the bus took its report.
"""

limit_periods = Table(
    "limit_periods",
    metadata,
    number(),
    required_column("node", Text),
    required_column("pod_uid", Text),
    required_column("namespace", Text),
    required_column("pod_name", Text),
    texts("container"),
    required_column("device_uuid", Text),
    required_column("state", Text),
    texts("reason"),
    *period(),
    at("recorded_at", default=True),
    at("seen_at"),
    Column("held_mib", Integer),
    required_column("peak_mib", Integer),
    required_column("granted_mib", Integer),
    at("evicting_at", nullable=True),
    at("evicted_at", nullable=True),
    texts("eviction_problem"),
    CheckConstraint("state IN ('exceeded', 'bypassed', 'unknown')", name="state_known"),
    CheckConstraint("ended_at IS NULL OR ended_at >= began_at", name="ends_after_it_began"),
    CheckConstraint("least(held_mib, peak_mib, granted_mib) >= 0", name="amounts_not_negative"),
    Index(
        "uq_limit_periods_open",
        "node",
        "pod_uid",
        "container",
        "device_uuid",
        unique=True,
        postgresql_where=text("ended_at IS NULL"),
    ),
    Index(None, "pod_uid"),
    Index(None, "began_at"),
)
"""Periods in which a container's limits on a card were not enforced; `ended_at` NULL: still.

No row: it was enforced, as far as `limit_checks` goes. `held_mib` is NULL where the driver does not
know; `granted_mib` is 0 on a card of which it had no grant.
"""
