"""Nodes that are wanted, and the types that they are of."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from hamicommon.ledger.tables.columns import at, metadata, number, required, texts

scale_wishes = Table(
    "scale_wishes",
    metadata,
    number(),
    required("type", Text),
    required("number", Integer),
    Column("state", Text, nullable=False, server_default=text("'wanted'")),
    required("pods", ARRAY(Text)),
    required("cpu_milli", BigInteger),
    required("memory_mib", BigInteger),
    Column("node", Text),
    texts("reason"),
    at("wanted_at", default=True),
    at("asked_at", nullable=True),
    at("ended_at", nullable=True),
    CheckConstraint(
        "state IN ('wanted', 'asked', 'arrived', 'given-up', 'dropped')"
        " AND (state IN ('wanted', 'asked')) = (ended_at IS NULL)",
        name="state_known",
    ),
    Index(
        "uq_scale_wishes_open",
        "type",
        "number",
        unique=True,
        postgresql_where=text("ended_at IS NULL"),
    ),
    Index(None, "ended_at"),
)
"""Nodes that pods (their uids) wait for; `asked` while a placeholder waits for an autoscaler.

`reason`: why it is not there yet, or how it ended.
"""

node_types = Table(
    "node_types",
    metadata,
    Column("name", Text, primary_key=True),
    required("spec", JSONB),
    texts("wrong"),
    at("changed_at", default=True),
)
"""Types of nodes, kept after the last node went; `wrong`: how a node of it differed."""
