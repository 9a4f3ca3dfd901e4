"""Let `allocations_at` return state, reason and end of grants as of its moment.

It returned the grant's later state. The state at a moment is that of the latest event up to it;
without an event, the state that the grant's own times prove, otherwise NULL (unknown).
"""

from __future__ import annotations

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

BEFORE = """
CREATE OR REPLACE FUNCTION allocations_at(at timestamptz) RETURNS SETOF v_allocation_history
LANGUAGE sql STABLE AS $$
    SELECT * FROM v_allocation_history h WHERE h.ended_at IS NOT NULL AND h.held @> at
    UNION ALL
    SELECT * FROM v_allocation_history h WHERE h.ended_at IS NULL AND h.reserved_at <= at
$$
"""
# The columns of v_allocation_history, in its order (0020).
_THEN = """
    SELECT h.allocation_id, h.namespace, h.pod_name, h.pod_uid, h.attempt, h.node,
           h.container_name, h.role, h.device_uuid, h.memory_mib, h.core_percent,
           {state} AS state, {reason} AS reason, h.reserved_at,
           CASE WHEN h.bound_at <= $1 THEN h.bound_at END AS bound_at,
           CASE WHEN h.allocated_at <= $1 THEN h.allocated_at END AS allocated_at,
           NULL::timestamptz AS ended_at, tstzrange(h.reserved_at, NULL) AS held,
           h.owner_kind, h.owner_name, h.owner_uid, h.deployment, h.service_account, h.created_by,
           h.labels
      FROM v_allocation_history h
     WHERE {where}
"""
# By the pod's uid and sequence, which have an index; a pod has few events.
_EVENT = """(SELECT e.{column} FROM allocation_events e
              WHERE e.pod_uid = h.pod_uid AND e.allocation_id = h.allocation_id AND e.at <= $1
              ORDER BY e.sequence DESC LIMIT 1)"""
# For a live grant without events: its present state, if it had that by then.
_LIVE_BY_THEN = "coalesce(h.allocated_at, h.bound_at, h.reserved_at) <= $1"


def after() -> str:
    """Return the function as of this revision."""
    state, reason = _EVENT.format(column="state"), _EVENT.format(column="reason")
    ended = _THEN.format(
        state=state, reason=reason, where="h.ended_at IS NOT NULL AND h.held @> $1"
    )
    live = _THEN.format(
        state=_of_live(state, "state"),
        reason=_of_live(reason, "reason"),
        where="h.ended_at IS NULL AND h.reserved_at <= $1",
    )
    return (
        "CREATE OR REPLACE FUNCTION allocations_at(at timestamptz)"
        " RETURNS SETOF v_allocation_history LANGUAGE sql STABLE AS $$"
        f"{ended} UNION ALL {live} $$"
    )


def _of_live(event: str, column: str) -> str:
    """Return the SQL of the column: for a question about now the row itself."""
    return (
        f"CASE WHEN $1 >= now() THEN h.{column}"
        f" ELSE coalesce({event}, CASE WHEN {_LIVE_BY_THEN} THEN h.{column} END) END"
    )


def upgrade() -> None:
    """Replace the function."""
    op.execute(after())


def downgrade() -> None:
    """Restore the function that returns the present state."""
    op.execute(BEFORE)
