"""Reservations of many pods by one statement with one commit."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from hamicommon.domain.allocations import AllocationState
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Conflict, HamiError, Unavailable
from hamicommon.events import event_subject
from hamicommon.ledger.cards.demands import is_plain, wanted_by
from hamicommon.ledger.constraints import ConstraintViolation
from hamicommon.ledger.database import Database
from hamicommon.ledger.model import Change, Draft, ReservationWrite, Rules

from hami_scheduler.adapters.postgres.allocations.encoding import batch_arguments, reserved_change
from hami_scheduler.adapters.postgres.allocations.fragments import (
    NEXT_SEQUENCE,
    OWNER_COLUMNS,
    SHARE_COLUMNS,
    SHARE_VALUES,
)
from hami_scheduler.adapters.postgres.allocations.reserving import Reservations
from hami_scheduler.adapters.postgres.rows import HOLDINGS, counters_of

logger = logging.getLogger(__name__)

MOST_ALONE = 4
"""Reservations of a batch that are written by themselves at once; each holds a connection."""

_ANY_STEP = event_subject("allocation", "")

# Many of RESERVE_ONE at once, of plain slices (`is_plain`), one array per column: $1 to $21 of each
# reservation, with who claims it at once and for how long; $22 to $25 of its containers, $26 to $37
# of their slices, $38 what subjects begin with. What is taken of one card is taken as a sum, all or
# none. A card that somebody has locked is left out, as in ADVANCE_ALL, and so is a namespace with
# quotas.
RESERVE_ALL = f"""
WITH draft AS (
  SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::jsonb[],
                       $7::float8[], $8::text[], $9::float8[], $10::jsonb[], $11::jsonb[],
                       $12::text[], $13::text[], $14::int[], $15::int[], $16::int[], $17::bool[],
                       $18::bool[], $19::jsonb[], $20::text[], $21::float8[])
             AS d (id, pod_uid, namespace, pod_name, node, policy, score, traceparent, lease_s,
                   annotations, owner, actor, card, slots, memory_mib, core_percent, coreless,
                   respects_cordon, payload, claimer, claim_s)
   WHERE NOT EXISTS (SELECT 1 FROM quotas q WHERE q.namespace = d.namespace)
), demand AS (
  SELECT card, node, sum(slots) AS slots, sum(memory_mib) AS memory_mib,
         sum(core_percent) AS core_percent, bool_or(coreless) AS coreless,
         bool_or(respects_cordon) AS respects_cordon
    FROM draft GROUP BY card, node
), mine AS (
  SELECT v.uuid FROM devices v JOIN demand w ON w.card = v.uuid AND w.node = v.node
   ORDER BY v.uuid FOR NO KEY UPDATE OF v SKIP LOCKED
), taken AS (
  UPDATE devices v SET used_slots = v.used_slots + w.slots,
         used_memory_mib = v.used_memory_mib + w.memory_mib,
         used_core_percent = v.used_core_percent + w.core_percent,
         version = v.version + 1, updated_at = now()
    FROM demand w JOIN mine ON mine.uuid = w.card
   WHERE v.uuid = mine.uuid AND v.node = w.node AND v.healthy AND v.present
     AND NOT (w.respects_cordon AND v.cordoned)
     AND v.used_slots + w.slots <= v.slots
     AND v.used_memory_mib + w.memory_mib <= v.memory_mib
     AND v.used_core_percent + w.core_percent <= v.core_percent
     AND NOT (w.coreless AND v.core_percent <> 0
              AND v.used_core_percent + w.core_percent = v.core_percent)
  RETURNING v.node, v.uuid, v.used_slots, v.used_memory_mib, v.used_core_percent, v.version,
            {HOLDINGS} AS holdings
), granted AS (
  SELECT d.* FROM draft d JOIN taken t ON t.uuid = d.card AND t.node = d.node
), allocation AS (
  INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, policy, score,
                           traceparent, deadline, annotations, reserved_at, binding_at, token,
                           {OWNER_COLUMNS})
  SELECT d.id, d.pod_uid, d.namespace, d.pod_name, 1 + coalesce(before.attempt, 0), d.node,
         CASE WHEN d.claimer IS NULL THEN 'reserved' ELSE 'binding' END, d.policy, d.score,
         d.traceparent, now() + make_interval(secs => greatest(d.lease_s, d.claim_s)),
         d.annotations, greatest(now(), before.ended_at),
         CASE WHEN d.claimer IS NOT NULL THEN greatest(now(), before.ended_at) END,
         CASE WHEN d.claimer IS NOT NULL THEN nextval('allocation_tokens') END,
         d.owner->>'kind', d.owner->>'name', d.owner->>'uid', d.owner->>'deployment',
         d.owner->>'service_account', d.owner->>'created_by', d.owner->'labels'
    FROM granted d CROSS JOIN LATERAL (
           SELECT max(p.attempt) AS attempt, max(p.ended_at) AS ended_at
             FROM allocations p WHERE p.pod_uid = d.pod_uid) AS before
  RETURNING id, attempt, state, token, reserved_at, deadline
), containers AS (
  INSERT INTO allocation_containers (allocation_id, container_index, name, role)
  SELECT c.* FROM granted d
    JOIN unnest($22::uuid[], $23::smallint[], $24::text[], $25::text[])
           AS c (allocation_id, container_index, name, role) ON c.allocation_id = d.id
), shares AS (
  INSERT INTO allocation_devices ({SHARE_COLUMNS})
  SELECT s.allocation_id, {SHARE_VALUES} FROM granted d
    JOIN unnest($26::uuid[], $27::smallint[], $28::smallint[], $29::text[], $30::text[],
                $31::text[], $32::text[], $33::int[], $34::int[], $35::int[], $36::text[],
                $37::jsonb[])
           AS s (allocation_id, container_index, position, container_name, role, device_uuid,
                 vendor, memory_mib, core_percent, slots, type, detail)
      ON s.allocation_id = d.id
), event AS (
  INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state, actor)
  SELECT d.pod_uid, {NEXT_SEQUENCE.format(pod_uid="d.pod_uid")} + s.number, d.id, s.previous,
         s.state, s.actor
    FROM granted d CROSS JOIN LATERAL (
           VALUES (0, NULL, 'reserved', d.actor), (1, 'reserved', 'binding', d.claimer)
         ) AS s (number, previous, state, actor)
   WHERE s.actor IS NOT NULL ORDER BY d.id, s.number
  RETURNING id, allocation_id, sequence, at, state
), announced AS (
  INSERT INTO outbox (subject, payload, traceparent)
  SELECT $38::text || event.state,
         d.payload || jsonb_build_object(
           'state', event.state, 'event_id', event.id, 'sequence', event.sequence,
           'at', event.at, 'counters', CASE WHEN event.state <> 'reserved' THEN '[]'::jsonb
           ELSE jsonb_build_array(
                  jsonb_build_object('node', t.node, 'uuid', t.uuid, 'used_slots', t.used_slots,
                                     'used_memory_mib', t.used_memory_mib,
                                     'used_core_percent', t.used_core_percent,
                                     'device_version', t.version)
                  || CASE WHEN t.holdings = '[]' THEN '{{}}'::jsonb
                          ELSE jsonb_build_object('holdings', t.holdings) END) END),
         d.traceparent
    FROM event JOIN granted d ON d.id = event.allocation_id JOIN taken t ON t.uuid = d.card
   ORDER BY event.id
)
SELECT a.id::text AS id, a.attempt, a.state, a.token, a.reserved_at, a.deadline, event.sequence,
       (SELECT source = 'agent' FROM nodes WHERE name = t.node) AS has_agent, t.*
  FROM allocation a JOIN granted d ON d.id = a.id JOIN taken t ON t.uuid = d.card
  JOIN event ON event.allocation_id = a.id AND event.state = 'reserved'
"""


class ReservationsTogether:
    """`reserve_all` of the port AllocationStore."""

    def __init__(
        self,
        database: Database,
        reservations: Reservations,
        *,
        rules: Rules,
        on_commit: Callable[[], None],
    ) -> None:
        self._database = database
        self._reservations = reservations
        self._rules = rules
        self._on_commit = on_commit

    async def reserve_all(self, writes: Sequence[ReservationWrite]) -> list[Change | HamiError]:
        """See the port."""
        together = [write for write in writes if is_plain(write.draft, self._rules)]
        rows = await self._reserved_together(together) if together else {}
        if rows:
            self._on_commit()
        gate = asyncio.Semaphore(MOST_ALONE)
        turns: defaultdict[GpuUuid, asyncio.Lock] = defaultdict(asyncio.Lock)
        return await asyncio.gather(
            *(
                self._reserved(write.draft, rows.get(write.draft.allocation_id), gate, turns)
                for write in writes
            )
        )

    async def _reserved_together(self, writes: Sequence[ReservationWrite]) -> dict[str, Any]:
        """Rows of RESERVE_ALL by id. Raises: Unavailable."""
        arguments = batch_arguments(writes, self._rules)
        try:
            rows = await self._database.fetch(RESERVE_ALL, *arguments, _ANY_STEP)
        except (Conflict, ConstraintViolation) as exc:
            # One of these pods has a grant already; each is written by itself.
            logger.info("not reserved together", extra={"error": str(exc)})
            return {}
        return {row["id"]: row for row in rows}

    async def _reserved(
        self,
        draft: Draft,
        row: Any,
        gate: asyncio.Semaphore,
        turns: Mapping[GpuUuid, asyncio.Lock],
    ) -> Change | HamiError:
        """What a card has goes to those that came first, also where each is written by itself."""
        if row is None:
            async with AsyncExitStack() as stack:
                for card in wanted_by(draft, self._rules):
                    await stack.enter_async_context(turns[card.uuid])
                await stack.enter_async_context(gate)
                try:
                    return await self._reservations.reserve(draft)
                except (Conflict, Unavailable) as exc:
                    return exc
        state = AllocationState(row["state"])
        return reserved_change(draft, row, (counters_of(row),), state=state, token=row["token"])
