"""Let a room's slices be where the slices still are that are to go for it.

A room (a grant in state `reserved`) is written before the first pod ends for it. Its slices have
`"room": true` in `devices.holdings` until the room is taken; `hami_placements_disjoint` (0033)
compares rooms with rooms, and all others with each other. A room without the mark, as the version
before writes it, is refused where another's slice is. After a way back, a change of a card that
keeps such an overlap is refused until the room ends, by its deadline.
"""

from __future__ import annotations

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

DISJOINT = """
CREATE OR REPLACE FUNCTION hami_placements_disjoint(holdings jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    WITH held AS (
        SELECT a.key AS allocation, s.n, s.value->>'role' AS role,
               s.value ? 'room' AS is_room, int4range(
                   (s.value#>>'{{detail,placement,start}}')::int,
                   (s.value#>>'{{detail,placement,start}}')::int
                   + (s.value#>>'{{detail,placement,size}}')::int) AS place
          FROM jsonb_each(holdings) a, jsonb_array_elements(a.value) WITH ORDINALITY s(value, n)
         WHERE s.value->'detail' ? 'placement'
    )
    SELECT NOT EXISTS (
        SELECT 1 FROM held x JOIN held y ON (x.allocation, x.n) < (y.allocation, y.n)
         WHERE x.place && y.place{alike}
           AND (x.allocation <> y.allocation
                OR (x.role <> 'init' AND y.role <> 'init')
                OR (x.role = 'sidecar' AND y.role = 'init')))
$$
"""


def upgrade() -> None:
    """Compare a room with rooms only."""
    op.execute(DISJOINT.format(alike=" AND x.is_room = y.is_room"))


def downgrade() -> None:
    """Compare a room with every slice again."""
    op.execute(DISJOINT.format(alike=""))
