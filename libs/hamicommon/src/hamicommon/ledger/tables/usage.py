"""What containers and namespaces used; written by the metrics service."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
)

from hamicommon.ledger.tables.columns import at, metadata, texts

usage_samples = Table(
    "usage_samples",
    metadata,
    at("sampled_at"),
    Column("node", Text, nullable=False),
    Column("device_uuid", Text, nullable=False),
    texts("pod_uid"),
    texts("namespace"),
    texts("pod_name"),
    texts("container"),
    Column("memory_used_bytes", BigInteger),
    Column("memory_limit_bytes", BigInteger),
    Column("core_percent", Float),
    Column("core_limit_percent", Integer),
    PrimaryKeyConstraint("sampled_at", "node", "device_uuid", "pod_uid", "container"),
    Index(None, "node", "sampled_at"),
    postgresql_partition_by="RANGE (sampled_at)",
)
"""One card (pod_uid empty) or one container's slice at one moment; NULL is unknown."""

usage_rollups = Table(
    "usage_rollups",
    metadata,
    at("bucket_start"),
    Column("bucket_s", Integer, nullable=False),
    Column("node", Text, nullable=False),
    Column("device_uuid", Text, nullable=False),
    texts("pod_uid"),
    texts("namespace"),
    texts("pod_name"),
    texts("container"),
    Column("sample_count", Integer, nullable=False),
    Column("memory_used_sum_bytes", Float),
    Column("memory_used_max_bytes", BigInteger),
    Column("memory_limit_max_bytes", BigInteger),
    Column("core_percent_sum", Float),
    Column("core_percent_max", Float),
    PrimaryKeyConstraint("bucket_start", "bucket_s", "node", "device_uuid", "pod_uid", "container"),
    CheckConstraint("bucket_s > 0 AND sample_count > 0", name="not_empty"),
    Index(None, "namespace", "bucket_start"),
)
"""Sums and maxima per bucket; sums make averages over any longer window exact."""

namespace_rollups = Table(
    "namespace_rollups",
    metadata,
    at("bucket_start"),
    Column("bucket_s", Integer, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("slice_s", Float, nullable=False),
    Column("card_s", Float, nullable=False),
    Column("memory_mib_s", Float, nullable=False),
    Column("core_s", Float, nullable=False),
    Column("sample_count", BigInteger),
    Column("core_percent_sum", Float),
    Column("memory_used_sum_bytes", Float),
    PrimaryKeyConstraint("bucket_s", "bucket_start", "namespace"),
    CheckConstraint("bucket_s IN (3600, 86400)", name="hour_or_day"),
)
"""What a namespace was granted and used in an hour or a day (UTC); month totals are sums of these.

Granted, of app containers: seconds x slices, seconds x share of the card's memory, seconds x MiB,
seconds x cores (1 = a whole card). Used: sums over samples as in `usage_rollups`; NULL where no
sample came.
"""
