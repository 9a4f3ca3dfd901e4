"""Allow the origin `claim`, for grants of ResourceClaims."""

from __future__ import annotations

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

NAME = "ck_allocations_origin_known"


def upgrade() -> None:
    """Allow the origin."""
    _allow("'scheduled', 'adopted', 'unmanaged', 'claim'")


def downgrade() -> None:
    """Change grants of claims to an origin that the version before knows."""
    op.execute("UPDATE allocations SET origin = 'unmanaged' WHERE origin = 'claim'")
    _allow("'scheduled', 'adopted', 'unmanaged'")


def _allow(origins: str) -> None:
    op.execute(f"ALTER TABLE allocations DROP CONSTRAINT IF EXISTS {NAME}")
    # In two steps, so that the rows are read without a lock that writers meet.
    op.create_check_constraint(
        op.f(NAME), "allocations", f"origin IN ({origins})", postgresql_not_valid=True
    )
    with op.get_context().autocommit_block():
        op.execute(f"ALTER TABLE allocations VALIDATE CONSTRAINT {NAME}")
