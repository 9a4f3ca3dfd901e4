"""Add the ResourceClaims that pods use, and the holders of claims.

The previous version neither reads nor writes them. Live grants get theirs from the first event of
their history, so that a further pod of a claim finds its slice counted.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

TABLE = "allocation_claims"
# Position by position, in the order in which the grant was written.
FILL = """
INSERT INTO allocation_claims (allocation_id, container_index, position, claim_uid, claim_name,
                               request, share_id, device_uuid, vendor, memory_mib, core_percent,
                               slots, counted)
SELECT x.allocation_id, x.container_index, x.position, c.claim->>'claim_uid', c.claim->>'claim',
       c.claim->>'request', c.claim->>'share_id', x.device_uuid, x.vendor, x.memory_mib,
       x.core_percent, x.slots, true
  FROM allocations a
  JOIN allocation_events e ON e.allocation_id = a.id AND e.detail ? 'claims'
  CROSS JOIN LATERAL (
           SELECT claim, row_number() OVER (PARTITION BY claim->>'container' ORDER BY number) - 1
                         AS position
             FROM jsonb_array_elements(e.detail->'claims') WITH ORDINALITY AS l (claim, number)) c
  JOIN allocation_devices x ON x.allocation_id = a.id
       AND x.container_name = c.claim->>'container' AND x.position = c.position
 WHERE a.origin = 'claim' AND a.ended_at IS NULL
    ON CONFLICT DO NOTHING
"""
VIEW = """
CREATE VIEW v_claim_holders AS
SELECT k.claim_uid, a.namespace, k.claim_name, k.request, k.share_id, a.pod_name, a.pod_uid,
       c.name AS container_name, a.node, k.device_uuid, k.memory_mib, k.core_percent, k.counted,
       coalesce(least(a.reserved_at, (SELECT min(e.at) FROM allocation_events e
                                       WHERE e.allocation_id = a.id)), a.reserved_at) AS held_from,
       a.ended_at AS held_until, a.state, a.id AS allocation_id
  FROM allocation_claims k
  JOIN allocations a ON a.id = k.allocation_id
  JOIN allocation_containers c USING (allocation_id, container_index)
"""


def upgrade() -> None:
    """Add the table with rows of live grants, and the view of holders."""
    op.create_table(
        TABLE,
        sa.Column("allocation_id", sa.UUID(as_uuid=False), nullable=False),
        sa.Column("container_index", sa.SmallInteger(), nullable=False),
        sa.Column("position", sa.SmallInteger(), nullable=False),
        sa.Column("claim_uid", sa.Text(), nullable=False),
        sa.Column("claim_name", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("share_id", sa.Text(), nullable=False),
        sa.Column("device_uuid", sa.Text(), nullable=False),
        sa.Column("vendor", sa.Text(), nullable=False),
        sa.Column("memory_mib", sa.Integer(), nullable=False),
        sa.Column("core_percent", sa.Integer(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("counted", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint(
            "allocation_id", "container_index", "position", name=op.f("pk_allocation_claims")
        ),
        sa.ForeignKeyConstraint(
            ["allocation_id"],
            ["allocations.id"],
            name=op.f("fk_allocation_claims_allocation_id_allocations"),
            ondelete="CASCADE",
        ),
    )
    op.create_index(op.f("ix_allocation_claims_claim_uid"), TABLE, ["claim_uid"])
    op.execute(FILL)
    op.execute(VIEW)


def downgrade() -> None:
    """Drop the table and the view; grants stay.

    A pod that shared another pod's claim has no slices of its own; the previous version releases
    them with that pod's.
    """
    op.execute("DROP VIEW v_claim_holders")
    op.drop_table(TABLE)
