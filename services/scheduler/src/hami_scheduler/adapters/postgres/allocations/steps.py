"""One change of an allocation's state."""

from __future__ import annotations

import logging
from collections.abc import Callable

from hamicommon.domain.allocations import LIVE_STATES, Allocation
from hamicommon.events import event_subject
from hamicommon.ledger.cards.demands import demands
from hamicommon.ledger.claimed import without
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.constraints import ConstraintViolation
from hamicommon.ledger.database import Database
from hamicommon.ledger.model import CardCounters, Change, QuotaOf, StateStep

from hami_scheduler.adapters.postgres.allocations.cards import give_cards, give_quota
from hami_scheduler.adapters.postgres.allocations.claims import passed_on
from hami_scheduler.adapters.postgres.allocations.encoding import event_payload, parts_of
from hami_scheduler.adapters.postgres.allocations.fragments import NEXT_SEQUENCE, announced
from hami_scheduler.adapters.postgres.allocations.reads import locked
from hami_scheduler.adapters.postgres.rows import COLUMNS, allocation_of

logger = logging.getLogger(__name__)

# What a step writes: $1 the allocation's id, $2 its state before, $3 its state now, $4 the reason,
# $5 whether it gets a new token, $6 seconds until its deadline, $8 who did it.
_STEP = """state = $3, reason = $4,
         token = CASE WHEN $5 THEN nextval('allocation_tokens') ELSE a.token END,
         deadline = now() + make_interval(secs => $6),
         binding_at = CASE WHEN $3 = 'binding' THEN now() ELSE a.binding_at END,
         bound_at = CASE WHEN $3 = 'bound' THEN coalesce(a.bound_at, now()) ELSE a.bound_at END,
         lock_deadline = CASE WHEN $3 = 'bound' AND a.bound_at IS NULL
                              THEN now() + interval '30 seconds'
                              ELSE a.lock_deadline END,
         allocated_at = CASE WHEN $3 = 'allocated' THEN coalesce(a.allocated_at, now())
                             ELSE a.allocated_at END"""
_STEP_EVENT = f"""event AS (
  INSERT INTO allocation_events
         (pod_uid, sequence, allocation_id, previous_state, state, reason, actor)
  SELECT a.pod_uid, {NEXT_SEQUENCE.format(pod_uid="a.pod_uid")}, a.id, $2, $3, $4, $8
    FROM allocation a
  RETURNING id, sequence, at
)"""

ADVANCE = f"""
WITH allocation AS (
  UPDATE allocations a
     SET {_STEP},
         ended_at = CASE WHEN $7 THEN NULL ELSE now() END
   WHERE a.id = $1 AND a.state = $2
  RETURNING a.*
), {_STEP_EVENT}, {announced("$9", "$10", "a.traceparent", "event, allocation a")}
SELECT a.id::text AS id, a.pod_uid, a.namespace, a.pod_name, a.attempt, a.node, a.state, a.token,
       a.reserved_at, a.deadline, a.traceparent, a.reason, event.sequence
  FROM allocation a, event
"""

# ADVANCE between two live states, where no card is given back: the row is guarded, written and read
# by one statement, committed by itself. No row comes back when it is not as the step wants it.
ADVANCE_LIVE = f"""
WITH allocation AS (
  UPDATE allocations a
     SET {_STEP}
   WHERE a.id = $1 AND a.state = $2 AND ($7::bigint IS NULL OR a.token = $7)
     AND ($10::text IS NULL OR a.node = $10)
  RETURNING a.*
), {_STEP_EVENT}, announced AS (
  INSERT INTO outbox (subject, payload, traceparent)
  SELECT $9, jsonb_build_object('version', 1, 'allocation_id', a.id::text, 'pod_uid', a.pod_uid,
                                'namespace', a.namespace, 'pod_name', a.pod_name, 'node', a.node,
                                'state', a.state, 'reason', a.reason, 'counters', '[]'::jsonb,
                                'event_id', event.id, 'sequence', event.sequence, 'at', event.at),
         a.traceparent
    FROM event, allocation a
)
SELECT {COLUMNS}, event.sequence
  FROM event, allocation a JOIN nodes n ON n.name = a.node
"""


class Steps:
    """`advance` of the port AllocationStore."""

    def __init__(
        self, database: Database, *, quota_of: QuotaOf, on_commit: Callable[[], None]
    ) -> None:
        self._database = database
        self._quota_of = quota_of
        self._on_commit = on_commit

    async def advance(self, step: StateStep) -> Change | None:
        """See the port."""
        if len(step.sources) == 1 and step.target in LIVE_STATES:
            try:
                return await self._advance_live(step)
            except ConstraintViolation:
                # An event of the pod came in between, without a change of state: wait for its turn.
                logger.info("step tried again", extra={"allocation_id": step.allocation_id})
        async with self._database.transaction() as connection:
            old = await locked(connection, step.allocation_id)
            if (
                old is None
                or old.state not in step.sources
                or (step.token is not None and old.token != step.token)
                or (step.node is not None and old.node != step.node)
            ):
                return None
            change = await apply_step(connection, old, step, self._quota_of)
        self._on_commit()
        return change

    async def _advance_live(self, step: StateStep) -> Change | None:
        """The short way."""
        [source] = step.sources
        row = await self._database.fetchrow(
            ADVANCE_LIVE,
            step.allocation_id,
            source,
            step.target,
            step.reason,
            step.new_token,
            step.lease_s,
            step.token,
            step.actor,
            event_subject("allocation", step.target),
            step.node,
        )
        if row is None:
            return None
        self._on_commit()
        return Change(allocation=allocation_of(row), sequence=row["sequence"])


async def apply_step(
    connection: Connection, old: Allocation, step: StateStep, quota_of: QuotaOf
) -> Change:
    """Writes the step of the locked `old`; a target that is not live gives its cards back.

    Slices that other pods hold by the same claims stay, counted for one of those.
    """
    counters: tuple[CardCounters, ...] = ()
    if step.target not in LIVE_STATES:
        kept = await passed_on(connection, old, step.actor)
        given = without(old.containers, old.claims, kept) if kept else old.containers
        await give_quota(connection, old.namespace, quota_of(given))
        counters = await give_cards(connection, old.id, demands(given))
    row = await connection.fetchrow(
        ADVANCE,
        old.id,
        old.state,
        step.target,
        step.reason,
        step.new_token,
        step.lease_s,
        step.target in LIVE_STATES,
        step.actor,
        event_subject("allocation", step.target),
        event_payload(old, step.target, step.reason, counters),
    )
    return Change(
        allocation=allocation_of({**dict(row), **parts_of(old)}),
        sequence=row["sequence"],
        counters=counters,
    )
