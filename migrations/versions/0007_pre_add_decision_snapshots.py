"""Store the cards of decisions, shared between decisions, and one sentence for explain."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

PENDING = """
CREATE OR REPLACE VIEW v_pending_reasons AS
SELECT DISTINCT ON (d.pod_uid) d.pod_uid, d.namespace, d.pod_name, d.message, d.reason_counts,
       d.candidates, d.repeat_count, d.at AS since, d.last_at{more}
FROM decisions d
WHERE d.outcome <> 'placed'
  AND NOT EXISTS (SELECT FROM decisions later
                  WHERE later.pod_uid = d.pod_uid AND later.at > d.at)
  AND NOT EXISTS (SELECT FROM allocations a
                  WHERE a.pod_uid = d.pod_uid AND a.ended_at IS NULL)
ORDER BY d.pod_uid, d.at DESC
"""


def upgrade() -> None:
    """Add the table and the columns."""
    op.create_table(
        "decision_snapshots",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column(
            "used_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.CheckConstraint(
            "kind IN ('inventory', 'counters')", name=op.f("ck_decision_snapshots_kind_known")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_decision_snapshots")),
    )
    op.create_index(
        op.f("ix_decision_snapshots_kind_used_at"), "decision_snapshots", ["kind", "used_at"]
    )
    op.add_column(
        "decisions", sa.Column("summary", sa.Text(), server_default=sa.text("''"), nullable=False)
    )
    op.add_column("decisions", sa.Column("inventory", sa.Text(), nullable=True))
    op.add_column("decisions", sa.Column("counters", sa.Text(), nullable=True))
    op.add_column(
        "decisions",
        sa.Column(
            "detail_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
    )
    op.create_index(
        op.f("ix_decisions_counters"),
        "decisions",
        ["counters"],
        postgresql_where=sa.text("counters IS NOT NULL"),
    )
    op.execute(PENDING.format(more=", d.summary"))


def downgrade() -> None:
    """Drop the table and the columns."""
    op.execute("DROP VIEW v_pending_reasons")
    op.execute(PENDING.format(more=""))
    op.drop_index(op.f("ix_decisions_counters"), table_name="decisions")
    for column in ("detail_at", "counters", "inventory", "summary"):
        op.drop_column("decisions", column)
    op.drop_index(op.f("ix_decision_snapshots_kind_used_at"), table_name="decision_snapshots")
    op.drop_table("decision_snapshots")
