"""Add the pod's owner to hourly sums of usage, with an index.

The question `overasked` joined a week of pods with all grants, and read the five-minute sums to
find the hourly ones. The new column has no default, so the previous version continues to work; the
owner of its hours is looked up. The index is built concurrently with writes, as in 0009.
`v_namespace_gpu_hours` finds live grants by their index, as the other views do since 0024.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

INDEX = "ix_usage_rollups_pod_hours"
ON = (
    "usage_rollups (bucket_start) INCLUDE (namespace, owner_name, pod_uid, memory_used_max_bytes,"
    " memory_limit_max_bytes, core_percent_max) WHERE bucket_s = 3600 AND pod_uid <> ''"
)
BY_STATE = "state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')"
BY_END = "ended_at IS NULL"
# As in 0008, with its columns named: what comes with `*` could not be taken away any more.
GPU_HOURS = """
CREATE OR REPLACE VIEW v_namespace_gpu_hours AS
WITH summed AS (
    SELECT max(bucket_start) + interval '1 hour' AS until FROM namespace_rollups
     WHERE bucket_s = 3600
), parts AS (
    SELECT namespace, date_trunc('day', bucket_start, 'UTC') AS day, slice_s, card_s
      FROM namespace_rollups WHERE bucket_s = 3600
    UNION ALL
    SELECT a.namespace, day,
           seconds * x.slots, seconds * x.memory_mib / nullif(d.memory_mib, 0)
      FROM summed CROSS JOIN LATERAL (
               SELECT id, namespace, reserved_at, ended_at FROM allocations WHERE {live}
               UNION ALL
               SELECT id, namespace, reserved_at, ended_at FROM allocations
                WHERE ended_at IS NOT NULL
                  AND hami_held(reserved_at, ended_at) && tstzrange(summed.until, NULL)) a
      JOIN allocation_devices x ON x.allocation_id = a.id AND x.role = 'app'
      JOIN devices d ON d.uuid = x.device_uuid
      CROSS JOIN LATERAL generate_series(
               date_trunc('day', greatest(a.reserved_at, summed.until), 'UTC'),
               coalesce(a.ended_at, now()), interval '1 day') AS day
      CROSS JOIN LATERAL (
               SELECT extract(epoch FROM
                        least(coalesce(a.ended_at, now()), day + interval '1 day')
                        - greatest(a.reserved_at, summed.until, day))::float8 AS seconds) t
     WHERE seconds > 0
)
SELECT namespace, day, sum(slice_s) / 3600 AS slice_hours,
       sum(card_s) / 3600 AS card_hours_by_memory
  FROM parts GROUP BY namespace, day
"""


def upgrade() -> None:
    """Add the columns and the index."""
    op.add_column("usage_rollups", sa.Column("owner_name", sa.Text()), if_not_exists=True)
    op.execute(GPU_HOURS.format(live=BY_END))
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX}")
        op.execute(f"CREATE INDEX CONCURRENTLY {INDEX} ON {ON}")
        op.execute("SET lock_timeout = 500")


def downgrade() -> None:
    """Drop the columns and the index; owners are looked up again."""
    op.execute(f"DROP INDEX {INDEX}")
    op.execute(GPU_HOURS.format(live=BY_STATE))
    op.drop_column("usage_rollups", "owner_name")
