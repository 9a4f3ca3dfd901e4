"""Add details of other vendors' slices (sizes, types, annotations) and a card's holdings.

`devices.holdings` is {allocation id: [{"role": "init"|"app", "detail": {...}}, ...]}, written by
the same guarded UPDATE as the counters. A detail with a `placement` {start, size} (a MIG slice)
holds that half-open range of the card; the CHECK lets no two live ones overlap. Containers of one
pod may, where one of them is an init container: they never run together.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

DISJOINT = """
CREATE FUNCTION hami_placements_disjoint(holdings jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    WITH held AS (
        SELECT a.key AS allocation, s.n, s.value->>'role' AS role, int4range(
                   (s.value#>>'{detail,placement,start}')::int,
                   (s.value#>>'{detail,placement,start}')::int
                   + (s.value#>>'{detail,placement,size}')::int) AS place
          FROM jsonb_each(holdings) a, jsonb_array_elements(a.value) WITH ORDINALITY s(value, n)
         WHERE s.value->'detail' ? 'placement'
    )
    SELECT NOT EXISTS (
        SELECT 1 FROM held x JOIN held y ON (x.allocation, x.n) < (y.allocation, y.n)
         WHERE x.place && y.place
           AND (x.allocation <> y.allocation OR (x.role = 'app' AND y.role = 'app')))
$$;
"""


def upgrade() -> None:
    """Add the columns and the guard."""
    op.add_column(
        "allocations",
        sa.Column("annotations", JSONB, nullable=False, server_default=sa.text("'{}'::jsonb")),
    )
    op.add_column(
        "allocation_devices",
        sa.Column("slots", sa.Integer, nullable=False, server_default=sa.text("1")),
    )
    op.add_column(
        "allocation_devices",
        sa.Column("type", sa.Text, nullable=False, server_default=sa.text("''")),
    )
    op.add_column(
        "allocation_devices",
        sa.Column("detail", JSONB, nullable=False, server_default=sa.text("'{}'::jsonb")),
    )
    op.create_check_constraint(
        op.f("ck_allocation_devices_slots_positive"), "allocation_devices", "slots > 0"
    )
    for name in ("info", "holdings"):
        op.add_column(
            "devices",
            sa.Column(name, JSONB, nullable=False, server_default=sa.text("'{}'::jsonb")),
        )
    op.execute(DISJOINT)
    op.create_check_constraint(
        op.f("ck_devices_placements_disjoint"),
        "devices",
        "holdings = '{}'::jsonb OR hami_placements_disjoint(holdings)",
    )


def downgrade() -> None:
    """Drop the columns and the guard."""
    op.drop_constraint(op.f("ck_devices_placements_disjoint"), "devices")
    op.execute("DROP FUNCTION hami_placements_disjoint(jsonb)")
    for name in ("info", "holdings"):
        op.drop_column("devices", name)
    op.drop_constraint(op.f("ck_allocation_devices_slots_positive"), "allocation_devices")
    for name in ("slots", "type", "detail"):
        op.drop_column("allocation_devices", name)
    op.drop_column("allocations", "annotations")
