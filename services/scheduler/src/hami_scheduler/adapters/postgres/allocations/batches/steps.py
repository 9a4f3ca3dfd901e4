"""Changes of many allocations' states, each kind by one statement with one commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from hamicommon.domain.allocations import Allocation, AllocationState
from hamicommon.errors import Conflict
from hamicommon.events import event_subject
from hamicommon.ledger.constraints import ConstraintViolation
from hamicommon.ledger.database import Database
from hamicommon.ledger.model import BindingClaim, StateStep

from hami_scheduler.adapters.postgres.allocations.batches.ways import way_columns, ways_of
from hami_scheduler.adapters.postgres.allocations.fragments import NEXT_SEQUENCE
from hami_scheduler.adapters.postgres.allocations.steps import Steps
from hami_scheduler.adapters.postgres.rows import COLUMNS, LIVE_SQL, allocation_of

logger = logging.getLogger(__name__)

_ANY_STEP = event_subject("allocation", "")


def _announced_steps(subject: str, state: str, reason: str) -> str:
    """The outbox rows of events that leave the cards as they are."""
    return f"""announced AS (
  INSERT INTO outbox (subject, payload, traceparent)
  SELECT {subject}, jsonb_build_object(
           'version', 1, 'allocation_id', a.id::text, 'pod_uid', a.pod_uid,
           'namespace', a.namespace, 'pod_name', a.pod_name, 'node', a.node, 'state', {state},
           'reason', {reason}, 'counters', '[]'::jsonb, 'event_id', event.id,
           'sequence', event.sequence, 'at', event.at),
         a.traceparent
    FROM allocation a JOIN event ON event.allocation_id = a.id
)"""


# Many of ADVANCE_LIVE at once, one array per column: $1 to $9 of each allocation, $10 to $15 of
# each of its steps in their order, which it makes all or none, $16 what subjects begin with. A row
# that somebody has locked is left out: a batch waits for nobody, so two of them never wait for each
# other.
ADVANCE_ALL = f"""
WITH way AS (
  SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bool[], $6::float8[],
                       $7::bigint[], $8::text[], $9::bool[])
             AS w (id, source, target, reason, new_token, lease_s, token, node, passes_bound)
), step AS (
  SELECT * FROM unnest($10::uuid[], $11::int[], $12::text[], $13::text[], $14::text[],
                       $15::text[])
             AS s (id, number, source, state, reason, actor)
), mine AS (
  SELECT a.id FROM way w JOIN allocations a ON a.id = w.id
   WHERE a.state = w.source FOR UPDATE OF a SKIP LOCKED
), allocation AS (
  UPDATE allocations a
     SET state = w.target, reason = w.reason,
         token = CASE WHEN w.new_token THEN nextval('allocation_tokens') ELSE a.token END,
         deadline = now() + make_interval(secs => w.lease_s),
         binding_at = CASE WHEN w.target = 'binding' THEN now() ELSE a.binding_at END,
         bound_at = CASE WHEN w.passes_bound THEN coalesce(a.bound_at, now()) ELSE a.bound_at END,
         lock_deadline = CASE WHEN w.passes_bound AND a.bound_at IS NULL
                              THEN now() + interval '30 seconds' ELSE a.lock_deadline END,
         allocated_at = CASE WHEN w.target = 'allocated' THEN coalesce(a.allocated_at, now())
                             ELSE a.allocated_at END
    FROM way w JOIN mine ON mine.id = w.id
   WHERE a.id = w.id AND a.state = w.source AND (w.token IS NULL OR a.token = w.token)
     AND (w.node IS NULL OR a.node = w.node)
  RETURNING a.*
), event AS (
  INSERT INTO allocation_events
         (pod_uid, sequence, allocation_id, previous_state, state, reason, actor)
  SELECT a.pod_uid, {NEXT_SEQUENCE.format(pod_uid="a.pod_uid")} + s.number, a.id, s.source,
         s.state, s.reason, s.actor
    FROM allocation a JOIN step s ON s.id = a.id ORDER BY a.id, s.number
  RETURNING id, allocation_id, sequence, at, state, reason
), {_announced_steps("$16::text || event.state", "event.state", "event.reason")}
SELECT DISTINCT allocation_id::text AS id FROM event
"""

# The reservations of many pods at once. A deadline that is late enough is left as it is, so that
# no index has to change.
CLAIM_ALL = f"""
WITH claim AS (
  SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::float8[])
             AS c (pod_uid, node, actor, lease_s)
), mine AS (
  SELECT a.id FROM allocations a JOIN claim c ON c.pod_uid = a.pod_uid
   WHERE {LIVE_SQL} AND a.state = 'reserved' AND a.node = c.node FOR UPDATE OF a SKIP LOCKED
), allocation AS (
  UPDATE allocations a
     SET state = 'binding', reason = '', token = nextval('allocation_tokens'), binding_at = now(),
         deadline = CASE WHEN a.deadline >= now() + make_interval(secs => c.lease_s)
                         THEN a.deadline ELSE now() + make_interval(secs => c.lease_s) END
    FROM claim c, mine
   WHERE a.id = mine.id AND a.pod_uid = c.pod_uid AND a.state = 'reserved' AND a.node = c.node
  RETURNING a.*, c.actor
), event AS (
  INSERT INTO allocation_events
         (pod_uid, sequence, allocation_id, previous_state, state, reason, actor)
  SELECT a.pod_uid, {NEXT_SEQUENCE.format(pod_uid="a.pod_uid")}, a.id, 'reserved', a.state,
         a.reason, a.actor
    FROM allocation a
  RETURNING id, allocation_id, sequence, at
), {_announced_steps("$5::text", "a.state", "a.reason")}
SELECT {COLUMNS}
  FROM event JOIN allocation a ON a.id = event.allocation_id JOIN nodes n ON n.name = a.node
"""


class StepsTogether:
    """`advance_all` and `claim_all` of the port AllocationStore."""

    def __init__(self, database: Database, steps: Steps, *, on_commit: Callable[[], None]) -> None:
        self._database = database
        self._steps = steps
        self._on_commit = on_commit

    async def advance_all(self, steps: Sequence[StateStep]) -> list[bool]:
        """See the port."""
        if len(steps) == 1:
            return [await self._steps.advance(steps[0]) is not None]
        ways = ways_of(steps)
        try:
            rows = await self._database.fetch(ADVANCE_ALL, *way_columns(ways), _ANY_STEP)
        except (Conflict, ConstraintViolation) as exc:
            logger.info("steps tried one by one", extra={"count": len(steps), "error": str(exc)})
            rows = []
        if rows:
            self._on_commit()
        made = {row["id"] for row in rows}
        done = {id(step) for way in ways if way[0].allocation_id in made for step in way}
        return [id(step) in done or await self._advanced(step) for step in steps]

    async def _advanced(self, step: StateStep) -> bool:
        try:
            return await self._steps.advance(step) is not None
        except Conflict as exc:
            logger.info("step not made", extra={"error": str(exc)})
            return False

    async def claim_all(self, claims: Sequence[BindingClaim]) -> list[Allocation | None]:
        """See the port."""
        columns = [(c.pod_uid, c.node, c.actor, c.lease_s) for c in claims]
        subject = event_subject("allocation", AllocationState.BINDING)
        arrays = map(list, zip(*columns, strict=True))
        try:
            rows = await self._database.fetch(CLAIM_ALL, *arrays, subject)
        except (Conflict, ConstraintViolation) as exc:
            # Something else happened to one of these pods; each is looked at by itself.
            logger.info("claims not made together", extra={"error": str(exc)})
            return [None] * len(claims)
        if rows:
            self._on_commit()
        found = {row["pod_uid"]: allocation_of(row) for row in rows}
        return [found.get(claim.pod_uid) for claim in claims]
