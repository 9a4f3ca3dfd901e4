"""An allocation's move to the cards that the kubelet gave."""

from __future__ import annotations

from collections.abc import Mapping

from hamicommon.domain.ids import GpuUuid
from hamicommon.events import event_subject
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.model import CardCounters, Change

from hami_scheduler.adapters.postgres.allocations.cards import Swap
from hami_scheduler.adapters.postgres.allocations.encoding import (
    card_names,
    event_payload,
    share_columns,
)
from hami_scheduler.adapters.postgres.allocations.fragments import (
    NEXT_SEQUENCE,
    SHARE_COLUMNS,
    SHARE_VALUES,
    announced,
)
from hami_scheduler.adapters.postgres.rows import SELECT_ALLOCATION, allocation_of

INSERT_SHARES = f"""
INSERT INTO allocation_devices ({SHARE_COLUMNS})
SELECT $1, {SHARE_VALUES}
  FROM unnest($2::smallint[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::text[],
              $8::int[], $9::int[], $10::int[], $11::text[], $12::jsonb[])
         AS s (container_index, position, container_name, role, device_uuid, vendor, memory_mib,
               core_percent, slots, type, detail)
"""
DELETE_SHARES = "DELETE FROM allocation_devices WHERE allocation_id = $1"

RECORD_MOVE = f"""
WITH allocation AS (
  SELECT pod_uid, traceparent FROM allocations WHERE id = $1
), event AS (
  INSERT INTO allocation_events
         (pod_uid, sequence, allocation_id, previous_state, state, reason, actor, detail)
  SELECT a.pod_uid, {NEXT_SEQUENCE.format(pod_uid="a.pod_uid")}, $1, $2, $2, $3, $4, $5
    FROM allocation a
  RETURNING id, sequence, at
), {announced("$6", "$7", "a.traceparent", "event, allocation a")}
SELECT sequence FROM event
"""


async def record_move(
    connection: Connection, swap: Swap, counters: Mapping[GpuUuid, CardCounters]
) -> Change:
    """Writes what `exchange_cards` did: the allocation's slices, its event, its announcement."""
    old, new = swap.old, swap.containers
    touched = tuple(counters[uuid] for uuid in swap.cards)
    await connection.execute(DELETE_SHARES, old.id)
    await connection.execute(INSERT_SHARES, old.id, *share_columns(new))
    reason = "moved to the cards that the kubelet gave"
    sequence = await connection.fetchval(
        RECORD_MOVE,
        old.id,
        old.state,
        reason,
        "node-agent",
        {"before": card_names(old.containers), "after": card_names(new)},
        event_subject("allocation", "moved"),
        event_payload(old, old.state, reason, touched),
    )
    fresh = await connection.fetchrow(f"{SELECT_ALLOCATION} WHERE a.id = $1", old.id)
    return Change(allocation=allocation_of(fresh), sequence=sequence, counters=touched)
