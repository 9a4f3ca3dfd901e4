"""Keep wishes for nodes, and the types of nodes that were there once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

WISHES, TYPES = "scale_wishes", "node_types"


def _at(name: str, *, default: bool = False) -> sa.Column[object]:
    return sa.Column(
        name,
        sa.DateTime(timezone=True),
        server_default=sa.text("now()") if default else None,
        nullable=not default,
    )


def _text(name: str, default: str = "") -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default=sa.text(f"'{default}'"), nullable=False)


def upgrade() -> None:
    """Add both tables."""
    op.create_table(
        WISHES,
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        _text("state", "wanted"),
        sa.Column("pods", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("cpu_milli", sa.BigInteger(), nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.Text()),
        _text("reason"),
        _at("wanted_at", default=True),
        _at("asked_at"),
        _at("ended_at"),
        sa.PrimaryKeyConstraint("id", name=f"pk_{WISHES}"),
        sa.CheckConstraint(
            "state IN ('wanted', 'asked', 'arrived', 'given-up', 'dropped')"
            " AND (state IN ('wanted', 'asked')) = (ended_at IS NULL)",
            name="state_known",
        ),
    )
    op.create_index(
        f"uq_{WISHES}_open",
        WISHES,
        ["type", "number"],
        unique=True,
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(f"ix_{WISHES}_ended_at", WISHES, ["ended_at"])
    op.create_table(
        TYPES,
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", postgresql.JSONB(), nullable=False),
        _text("wrong"),
        _at("changed_at", default=True),
        sa.PrimaryKeyConstraint("name", name=f"pk_{TYPES}"),
    )


def downgrade() -> None:
    """Drop both; placeholders stay until the next scheduler of this version."""
    op.drop_table(TYPES)
    op.drop_table(WISHES)
