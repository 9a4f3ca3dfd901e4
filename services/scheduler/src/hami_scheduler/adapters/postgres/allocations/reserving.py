"""One reservation: its cards and quota (guarded), its row, event and announcement."""

from __future__ import annotations

from collections.abc import Callable

from hamicommon.domain.allocations import AllocationState
from hamicommon.errors import Conflict
from hamicommon.ledger.cards.demands import demands, wanted_by
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.constraints import ConstraintViolation
from hamicommon.ledger.database import Database
from hamicommon.ledger.model import CardCounters, Change, Draft, QuotaOf, Rules, StateStep

from hami_scheduler.adapters.postgres.allocations.cards import (
    check_seen,
    lock_cards,
    take_cards,
    take_columns,
    take_quota,
)
from hami_scheduler.adapters.postgres.allocations.encoding import (
    latest_counters,
    reserve_arguments,
    reserved_change,
)
from hami_scheduler.adapters.postgres.allocations.fragments import (
    ALLOCATION_COLUMNS,
    ALLOCATION_VALUES,
    CONTAINERS,
    NEXT_SEQUENCE,
    PARTS,
    RESERVED,
    SHARE_COLUMNS,
    SHARE_VALUES,
    SHARES,
    announced,
)
from hami_scheduler.adapters.postgres.allocations.reads import locked
from hami_scheduler.adapters.postgres.allocations.steps import apply_step
from hami_scheduler.adapters.postgres.rows import HOLDINGS, counters_of

RESERVE = f"""
WITH allocation AS (
  INSERT INTO allocations ({ALLOCATION_COLUMNS}) VALUES ({ALLOCATION_VALUES})
  RETURNING attempt, reserved_at, deadline
), {PARTS}, event AS (
  INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state, actor)
  VALUES ($2, {NEXT_SEQUENCE.format(pod_uid="$2")}, $1, 'reserved', $24)
  RETURNING id, sequence, at
), {announced("$25", "$26", "$8", "event")}
SELECT {RESERVED} FROM allocation, event
"""

# The whole reservation in one statement, for the common case of one card and a namespace without
# quota: one round trip, committed by itself. No row comes back when the card refuses or when the
# namespace has a quota; then the long way finds out which.
RESERVE_ONE = f"""
WITH taken AS (
  UPDATE devices SET used_slots = used_slots + $31, used_memory_mib = used_memory_mib + $32,
         used_core_percent = used_core_percent + $33, holdings = holdings || $39::jsonb,
         ceiling_core_percent = greatest(ceiling_core_percent, $40),
         version = version + 1, updated_at = now()
   WHERE uuid = $30 AND node = $5 AND healthy AND present AND NOT ($37 AND cordoned)
     AND used_slots + $31 <= slots
     AND used_memory_mib + $32 <= memory_mib
     AND used_core_percent + $33 <= coalesce($40, core_percent)
     AND NOT ($34 AND used_slots > 0)
     AND NOT ($35 AND coalesce($40, core_percent) = 100 AND used_slots > 0)
     AND NOT ($36 AND coalesce($40, core_percent) <> 0
              AND used_core_percent = coalesce($40, core_percent))
     AND ($38::bigint IS NULL OR version = $38)
     AND ($39::jsonb = '{{}}' OR hami_placements_disjoint(holdings || $39::jsonb))
     AND NOT EXISTS (SELECT 1 FROM quotas q WHERE q.namespace = $3 AND q.resource = ANY($29))
  RETURNING node, uuid, used_slots, used_memory_mib, used_core_percent, version,
            {HOLDINGS} AS holdings
), allocation AS (
  INSERT INTO allocations ({ALLOCATION_COLUMNS}) SELECT {ALLOCATION_VALUES} FROM taken
  RETURNING attempt, reserved_at, deadline
), containers AS (
  INSERT INTO allocation_containers (allocation_id, container_index, name, role)
  SELECT $1, c.* FROM taken, {CONTAINERS}
), shares AS (
  INSERT INTO allocation_devices ({SHARE_COLUMNS}) SELECT $1, {SHARE_VALUES} FROM taken, {SHARES}
), event AS (
  INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state, actor)
  SELECT $2, {NEXT_SEQUENCE.format(pod_uid="$2")}, $1, 'reserved', $24 FROM taken
  RETURNING id, sequence, at
), announced AS (
  INSERT INTO outbox (subject, payload, traceparent)
  SELECT $25, $26::jsonb
              || jsonb_build_object('event_id', event.id, 'sequence', event.sequence,
                                    'at', event.at, 'counters', jsonb_build_array(
                     jsonb_build_object('node', taken.node, 'uuid', taken.uuid,
                                        'used_slots', taken.used_slots,
                                        'used_memory_mib', taken.used_memory_mib,
                                        'used_core_percent', taken.used_core_percent,
                                        'device_version', taken.version)
                     || CASE WHEN taken.holdings = '[]' THEN '{{}}'::jsonb
                             ELSE jsonb_build_object('holdings', taken.holdings) END)),
         $8
    FROM event, taken
)
SELECT {RESERVED}, taken.* FROM allocation, event, taken
"""


class Reservations:
    """`reserve` of the port AllocationStore."""

    def __init__(
        self, database: Database, *, quota_of: QuotaOf, rules: Rules, on_commit: Callable[[], None]
    ) -> None:
        self._database = database
        self._quota_of = quota_of
        self._rules = rules
        self._on_commit = on_commit

    async def reserve(self, draft: Draft) -> Change:
        """See the port."""
        try:
            change = await self._reserve_one(draft)
            if change is None:
                async with self._database.transaction() as connection:
                    change = await self._reserve(connection, draft)
        except ConstraintViolation as exc:
            raise Conflict(f"pod {draft.pod_uid} was reserved by somebody else: {exc}") from exc
        self._on_commit()
        return change

    async def _reserve_one(self, draft: Draft) -> Change | None:
        """The short way; None when it does not apply, or did not succeed."""
        wanted = wanted_by(draft, self._rules)
        if draft.replaces is not None or len(wanted) != 1:
            return None
        [card] = wanted
        row = await self._database.fetchrow(
            RESERVE_ONE,
            *reserve_arguments(draft, ()),
            sorted(draft.quota),
            card.uuid,
            *take_columns(draft.allocation_id, card, draft.mutex),
        )
        return None if row is None else reserved_change(draft, row, (counters_of(row),))

    async def _reserve(self, connection: Connection, draft: Draft) -> Change:
        wanted = wanted_by(draft, self._rules)
        given: tuple[CardCounters, ...] = ()
        if draft.replaces is not None:
            old = await locked(connection, draft.replaces)
            if old is None or old.state is not AllocationState.RESERVED:
                raise Conflict(f"allocation {draft.replaces} is no longer only reserved")
            both = {card.uuid for card in (*demands(old.containers), *wanted)}
            wanted = check_seen(await lock_cards(connection, sorted(both)), wanted)
            step = StateStep(
                allocation_id=old.id,
                sources=frozenset({AllocationState.RESERVED}),
                target=AllocationState.RELEASED,
                reason="replaced by a new reservation",
                actor=draft.actor,
            )
            given = (await apply_step(connection, old, step, self._quota_of)).counters
        await take_quota(connection, draft.namespace, draft.quota)
        taken = await take_cards(
            connection, draft.allocation_id, draft.placement.node, wanted, mutex=draft.mutex
        )
        row = await connection.fetchrow(RESERVE, *reserve_arguments(draft, taken))
        return reserved_change(draft, row, latest_counters((*given, *taken)))
