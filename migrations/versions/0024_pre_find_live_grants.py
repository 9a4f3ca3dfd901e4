"""Let all questions find live grants by the index on `ended_at`.

Since 0019 the index of live rows uses `ended_at`. The functions and views of 0008 still selected by
state, and read every grant ever made. Their results do not change: a grant has an end exactly when
its state is not a live one (`ck_allocations_ended_when_not_live`).
"""

from __future__ import annotations

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

BEFORE = "{of}state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')"
AFTER = "{of}ended_at IS NULL"

AT = """
CREATE OR REPLACE FUNCTION allocations_at(at timestamptz) RETURNS SETOF v_allocation_history
LANGUAGE sql STABLE AS $$
    SELECT * FROM v_allocation_history h WHERE h.ended_at IS NOT NULL AND h.held @> at
    UNION ALL
    SELECT * FROM v_allocation_history h WHERE {live} AND h.reserved_at <= at
$$
"""
BETWEEN = """
CREATE OR REPLACE FUNCTION allocations_between("from" timestamptz, until timestamptz)
RETURNS SETOF v_allocation_history LANGUAGE sql STABLE AS $$
    SELECT * FROM v_allocation_history h
     WHERE h.ended_at IS NOT NULL AND h.held && tstzrange("from", until)
    UNION ALL
    SELECT * FROM v_allocation_history h WHERE {live} AND h.reserved_at < until
$$
"""
ON_SICK = """
CREATE OR REPLACE VIEW v_pods_on_sick_cards AS
SELECT s.node, s.device_uuid, s.reason, s.sick_at, s.well_at, s.sick, h.namespace, h.pod_name,
       h.pod_uid, h.container_name, h.state, s.sick * h.held AS together
  FROM v_sick_cards s JOIN v_allocation_history h ON h.device_uuid = s.device_uuid
   AND h.ended_at IS NOT NULL AND h.held && s.sick
   AND hami_text_span(h.node, h.node, '[]') && hami_text_span(s.node, s.node, '[]')
UNION ALL
SELECT s.node, s.device_uuid, s.reason, s.sick_at, s.well_at, s.sick, h.namespace, h.pod_name,
       h.pod_uid, h.container_name, h.state, s.sick * h.held
  FROM v_sick_cards s JOIN v_allocation_history h ON h.device_uuid = s.device_uuid
   AND {live} AND h.node = s.node AND h.held && s.sick
"""


def upgrade() -> None:
    """Select live grants by `ended_at`."""
    _ask(AFTER)


def downgrade() -> None:
    """Select live grants by their state."""
    _ask(BEFORE)


def _ask(live: str) -> None:
    for statement in (AT, BETWEEN, ON_SICK):
        op.execute(statement.format(live=live.format(of="h.")))
