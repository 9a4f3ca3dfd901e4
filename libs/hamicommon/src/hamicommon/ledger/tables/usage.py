"""Tables of use by containers and namespaces; written by the metrics service."""

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
    text,
)

from hamicommon.ledger.tables.columns import (
    at,
    bucket,
    hour_or_day,
    metadata,
    required_column,
    texts,
)

usage_samples = Table(
    "usage_samples",
    metadata,
    at("sampled_at"),
    required_column("node", Text),
    required_column("device_uuid", Text),
    texts("pod_uid"),
    texts("namespace"),
    texts("pod_name"),
    texts("container"),
    Column("memory_used_bytes", BigInteger),
    Column("memory_limit_bytes", BigInteger),
    Column("core_percent", Float),
    Column("core_limit_percent", Integer),
    PrimaryKeyConstraint("sampled_at", "node", "device_uuid", "pod_uid", "container"),
    CheckConstraint(
        "least(memory_used_bytes, memory_limit_bytes, core_limit_percent, core_percent) >= 0",
        name="amounts_not_negative",
    ),
    Index(None, "node", "sampled_at"),
    postgresql_partition_by="RANGE (sampled_at)",
)
"""Samples of one card (pod_uid empty) or of one container's slice; NULL is unknown."""

usage_rollups = Table(
    "usage_rollups",
    metadata,
    *bucket(),
    required_column("node", Text),
    required_column("device_uuid", Text),
    texts("pod_uid"),
    texts("namespace"),
    texts("pod_name"),
    texts("container"),
    required_column("sample_count", Integer),
    Column("memory_used_sum_bytes", Float),
    Column("memory_used_max_bytes", BigInteger),
    Column("memory_limit_max_bytes", BigInteger),
    Column("core_percent_sum", Float),
    Column("core_percent_max", Float),
    Column("owner_name", Text),
    PrimaryKeyConstraint("bucket_start", "bucket_s", "node", "device_uuid", "pod_uid", "container"),
    CheckConstraint("bucket_s > 0 AND sample_count > 0", name="not_empty"),
    CheckConstraint(
        "least(memory_used_sum_bytes, memory_used_max_bytes, memory_limit_max_bytes,"
        " core_percent_sum, core_percent_max) >= 0",
        name="amounts_not_negative",
    ),
    Index(None, "namespace", "bucket_start"),
    Index(
        "ix_usage_rollups_pod_hours",
        "bucket_start",
        postgresql_include=[
            *("namespace", "owner_name", "pod_uid", "memory_used_max_bytes"),
            *("memory_limit_max_bytes", "core_percent_max"),
        ],
        postgresql_where=text("bucket_s = 3600 AND pod_uid <> ''"),
    ),
)
"""Sums and maxima of samples per hour or day, exact for averages over longer times.

`owner_name` is set only for hours: the deployment or controller of a granted pod, empty for a pod
without one; NULL if no grant of the pod is known, and for hours from before 0026.
"""

namespace_rollups = Table(
    "namespace_rollups",
    metadata,
    *bucket(),
    required_column("namespace", Text),
    required_column("slice_s", Float),
    required_column("card_s", Float),
    required_column("memory_mib_s", Float),
    required_column("core_s", Float),
    Column("sample_count", BigInteger),
    Column("core_percent_sum", Float),
    Column("memory_used_sum_bytes", Float),
    Column("idle_s", Float),
    PrimaryKeyConstraint("bucket_s", "bucket_start", "namespace"),
    hour_or_day(),
    Index(
        "ix_namespace_rollups_not_idle_yet",
        "bucket_start",
        postgresql_where=text("bucket_s = 3600 AND idle_s IS NULL AND sample_count > 0"),
    ),
)
"""Grants and use of a namespace per hour or day (UTC); a month is the sum of its days.

Granted, of app containers: seconds x slices, seconds x share of the card's memory, seconds x MiB,
seconds x cores (1 = a whole card). Used: sums over samples as in `usage_rollups`; NULL where no
sample came. `idle_s`: seconds x slices in whose hour no sample showed a core at work; NULL where no
sample came, and where it was not summed up yet.
"""
