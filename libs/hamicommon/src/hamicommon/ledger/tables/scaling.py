"""Tables of requests for nodes (wishes), and of the types of those nodes."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from hamicommon.ledger.tables.columns import at, metadata, number, required_column, texts

scale_wishes = Table(
    "scale_wishes",
    metadata,
    number(),
    required_column("type", Text),
    required_column("number", Integer),
    Column("state", Text, nullable=False, server_default=text("'wanted'")),
    required_column("pods", ARRAY(Text)),
    required_column("cpu_milli", BigInteger),
    required_column("memory_mib", BigInteger),
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
"""Requests for nodes that pods (by uid) wait for; `asked` while a placeholder pod is pending.

`reason`: why it is not there yet, or how it ended.
"""

node_types = Table(
    "node_types",
    metadata,
    Column("name", Text, primary_key=True),
    required_column("spec", JSONB),
    texts("wrong"),
    at("changed_at", default=True),
)
"""Types of nodes, kept after the last node is deleted.

`wrong`: how a node differed from its type.
"""
