"""Record the victims of each room, with a view for people.

A room is a grant in state `reserved`, so the rule of who fits on a card needs no column of its own.
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


def upgrade() -> None:
    """Add the table and its view."""
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


def downgrade() -> None:
    """Drop the record; rooms stay until their deadline."""
    op.execute("DROP VIEW v_preempted_pods")
    op.drop_table(TABLE)
