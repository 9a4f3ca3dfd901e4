"""Record the victims of each room, with a view for people.

A room is a grant in state `reserved`, so the rule of which pods fit on a card needs no new column.
The rows are written with the room, before the first eviction.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

TABLE = "preempted"
VIEW = """
CREATE VIEW v_preempted_pods AS
SELECT v.namespace, v.pod_name, v.pod_uid, p.victim_priority AS priority, v.owner_kind,
       v.owner_name, v.node, r.namespace AS for_namespace, r.pod_name AS for_pod_name,
       r.pod_uid AS for_pod_uid, p.room_priority AS for_priority, p.planned_at, p.evicted_at,
       p.problem, v.ended_at AS gone_at,
       CASE WHEN r.binding_at IS NOT NULL THEN 'taken'
            WHEN r.ended_at IS NULL THEN 'held'
            ELSE r.state END AS room_outcome,
       CASE WHEN r.binding_at IS NULL THEN r.reason ELSE '' END AS room_reason,
       r.id AS room_id, v.id AS allocation_id
  FROM preempted p JOIN allocations r ON r.id = p.room_id JOIN allocations v ON v.id = p.victim_id
"""


# As in 0032, but a pod that a room is held for still waits.
PENDING = """
CREATE OR REPLACE VIEW v_pending_reasons AS
SELECT d.pod_uid, d.namespace, d.pod_name, d.message, d.reason_counts,
       d.candidates, d.repeat_count, d.at AS since, d.last_at, d.summary
FROM decisions d
WHERE d.outcome <> 'placed'
  AND (d.wait_ended_at > now()
       OR (d.wait_ended_at = '-infinity' AND d.last_at > now() - interval '10 minutes'))
  AND NOT EXISTS (SELECT FROM decisions later
                  WHERE later.pod_uid = d.pod_uid AND later.at >= d.at
                    AND (later.at, later.id) > (d.at, d.id))
  AND NOT EXISTS (SELECT FROM allocations a
                  WHERE a.pod_uid = d.pod_uid AND a.ended_at IS NULL{unless})
"""
_GRANTED, _ON_ITS_WAY = "a.reserved_at <= $1", "coalesce(a.binding_at, a.bound_at) <= $1"
# The function of 0037, with another condition.
WAITING = """
DO $do$ BEGIN
    EXECUTE replace(pg_get_functiondef('waiting_pods_at(timestamptz)'::regprocedure),
                    '{old}', '{new}');
END $do$
"""


def upgrade() -> None:
    """Add the table and its view, and let pods with a room wait."""
    op.create_table(
        TABLE,
        *(
            sa.Column(
                name,
                sa.UUID(as_uuid=False),
                sa.ForeignKey(
                    "allocations.id", name=f"fk_{TABLE}_{name}_allocations", ondelete="CASCADE"
                ),
                nullable=False,
            )
            for name in ("room_id", "victim_id")
        ),
        sa.Column("room_priority", sa.Integer(), nullable=False),
        sa.Column("victim_priority", sa.Integer(), nullable=False),
        sa.Column(
            "planned_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("evicted_at", sa.DateTime(timezone=True)),
        sa.Column("problem", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.PrimaryKeyConstraint("room_id", "victim_id", name=f"pk_{TABLE}"),
    )
    op.create_index(f"ix_{TABLE}_victim_id", TABLE, ["victim_id"])
    op.create_index(f"ix_{TABLE}_planned_at", TABLE, ["planned_at"])
    op.execute(VIEW)
    op.execute(PENDING.format(unless=" AND a.state <> 'reserved'"))
    op.execute(WAITING.format(old=_GRANTED, new=_ON_ITS_WAY))


def downgrade() -> None:
    """Drop the record; rooms stay until their deadline."""
    op.execute(WAITING.format(old=_ON_ITS_WAY, new=_GRANTED))
    op.execute(PENDING.format(unless=""))
    op.execute("DROP VIEW v_preempted_pods")
    op.drop_table(TABLE)
