"""Tables of refusals by admission and of operators' calls."""

from __future__ import annotations

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    Column,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    text,
)

from hamicommon.ledger.tables.columns import at, count, metadata, texts


def _groups() -> Column[object]:
    return Column("groups", ARRAY(Text), nullable=False, server_default=text("'{}'::text[]"))


admission_refusals = Table(
    "admission_refusals",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    at("at"),
    at("last_at"),
    Column("username", Text, nullable=False),
    _groups(),
    Column("namespace", Text, nullable=False),
    Column("pod_name", Text, nullable=False),
    texts("owner_kind"),
    texts("owner_name"),
    texts("service_account"),
    Column("operation", Text, nullable=False),
    Column("reason", Text, nullable=False),
    texts("message"),
    Column("repeat_count", Integer, nullable=False, server_default=text("1")),
    count("other_count"),
    Column("reviews", ARRAY(BigInteger), nullable=False, server_default=text("'{}'::bigint[]")),
    Index(None, "at"),
    Index(None, "username", "namespace", "at"),
)
"""Pods that admission refused, and who created them; written by the metrics service.

Identical ones within an hour are one row (`repeat_count`). A user has a bounded number of rows in a
namespace and hour; what comes beyond them is counted by the newest (`other_count`). A row of user
'' counts what came beyond the bound of all users. `reviews` are the hashes of the newest reviews
that it counts, so that one which is delivered again is not counted again.
"""

operator_calls = Table(
    "operator_calls",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    at("at", default=True),
    at("ended_at", nullable=True),
    Column("username", Text),
    _groups(),
    texts("source"),
    texts("address"),
    Column("verb", Text, nullable=False),
    texts("object"),
    Column("outcome", Text, nullable=False),
    texts("message"),
    Column("repeat_count", Integer, nullable=False, server_default=text("1")),
    CheckConstraint("outcome IN ('begun', 'done', 'failed', 'refused')", name="outcome_known"),
    Index(None, "at"),
)
"""Calls that change something (`adopt`, a dead letter sent again, a migration), and their callers.

The row is written before the call is carried out, as `begun`: a call that stays so was interrupted.
`source` states how the caller was identified: `token`, `certificate`, `open` (no check; `username`
is NULL) or `database`. Identical refused calls within an hour share one row.
"""
