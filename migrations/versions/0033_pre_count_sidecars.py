"""Count sidecars together with the init containers that are declared after them.

Kubernetes runs an init container together with every sidecar before it. The order was not known, so
such a pod was granted too little. For existing rows it stays unknown (NULL), so that the granted
amount is counted until the grant ends. The column has no default: the previous version continues to
work, and treats a sidecar as an app container.

`hami_beside` is the amount that the sidecars before an init container hold of its card.
`capacity_between` and `showback_between` (0022, 0023) add it to the init container's own amount,
and `hami_placements_disjoint` (0006) no longer lets the two overlap.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

# A container's name is the only one of its pod.
BESIDE = """
CREATE OR REPLACE FUNCTION hami_beside(allocation uuid, card text, container text,
    OUT slots bigint, OUT memory_mib bigint, OUT core_percent bigint)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce(sum(s.slots), 0), coalesce(sum(s.memory_mib), 0),
           coalesce(sum(s.core_percent), 0)
      FROM allocation_devices s
     WHERE s.allocation_id = allocation AND s.device_uuid = card AND s.sidecar
       AND s.container_index < (
           SELECT min(i.container_index) FROM allocation_devices i
            WHERE i.allocation_id = allocation AND i.container_name = container)
$$
"""
DISJOINT = """
CREATE OR REPLACE FUNCTION hami_placements_disjoint(holdings jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    WITH held AS (
        SELECT a.key AS allocation, s.n, s.value->>'role' AS role, int4range(
                   (s.value#>>'{{detail,placement,start}}')::int,
                   (s.value#>>'{{detail,placement,start}}')::int
                   + (s.value#>>'{{detail,placement,size}}')::int) AS place
          FROM jsonb_each(holdings) a, jsonb_array_elements(a.value) WITH ORDINALITY s(value, n)
         WHERE s.value->'detail' ? 'placement'
    )
    SELECT NOT EXISTS (
        SELECT 1 FROM held x JOIN held y ON (x.allocation, x.n) < (y.allocation, y.n)
         WHERE x.place && y.place
           AND (x.allocation <> y.allocation OR {together}))
$$
"""
BEFORE = "(x.role = 'app' AND y.role = 'app')"
"""Condition of 0006 for slices that exist at the same time."""
# The slices of an allocation are in the order of its containers.
TOGETHER = "(x.role <> 'init' AND y.role <> 'init') OR (x.role = 'sidecar' AND y.role = 'init')"

SUMS = ("capacity_between", "showback_between")
AMOUNTS = ("memory_mib", "core_percent", "slots")
ALONE = "max(x.{amount}) FILTER (WHERE x.role = 'init')"
BESIDE_SIDECARS = (
    "max(x.{amount} + (hami_beside(x.allocation_id, x.device_uuid, x.container_name)).{amount})"
    " FILTER (WHERE x.role = 'init')"
)
# The functions are long, and nothing else of them changes.
REPLACE = """
DO $$ DECLARE
    was text := pg_get_functiondef('{name}(timestamptz, timestamptz)'::regprocedure);
BEGIN
    IF position({old} IN was) = 0 THEN
        RAISE EXCEPTION 'the function {name} is not that of its revision: it has no %', {old};
    END IF;
    EXECUTE {change};
END $$
"""


def upgrade() -> None:
    """Add the column and the function, and use them."""
    op.add_column("allocation_devices", sa.Column("sidecar", sa.Boolean()), if_not_exists=True)
    op.execute(BESIDE)
    _change_sums(ALONE, BESIDE_SIDECARS)
    op.execute(DISJOINT.format(together=TOGETHER))


def downgrade() -> None:
    """Drop them: sidecars with slices count as app containers again."""
    op.execute(DISJOINT.format(together=BEFORE))
    _change_sums(BESIDE_SIDECARS, ALONE)
    op.execute("DROP FUNCTION hami_beside(uuid, text, text)")
    op.drop_column("allocation_devices", "sidecar")


def _change_sums(old: str, new: str) -> None:
    for name in SUMS:
        change = "was"
        for amount in AMOUNTS:
            pair = (_quote(each.format(amount=amount)) for each in (old, new))
            change = f"replace({change}, {', '.join(pair)})"
        first = _quote(old.format(amount=AMOUNTS[0]))
        op.execute(REPLACE.format(name=name, old=first, change=change))


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
