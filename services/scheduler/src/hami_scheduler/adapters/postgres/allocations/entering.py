"""Grants of pods that are on their nodes already, inside a transaction of the store.

A pod that came past us is granted only what its cards have room for. A pod that HAMi started holds
its slices whether we write them down or not: there the ceilings rise to what is held, and such a
card gets no new grants until it is under its capacity again (architecture 2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hamicommon.domain.ids import AllocationId, NodeName
from hamicommon.errors import CapacityConflict
from hamicommon.ledger.cards.demands import CardDemand, wanted_by
from hamicommon.ledger.claimed import counted, without
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.model import CardCounters, Change, Entry, QuotaOf, Rules

from hami_scheduler.adapters.postgres.allocations.cards import RETURNING, take_cards, take_quota
from hami_scheduler.adapters.postgres.allocations.claims import counted_elsewhere, record_claims
from hami_scheduler.adapters.postgres.allocations.encoding import reserve_arguments, reserved_change
from hami_scheduler.adapters.postgres.allocations.fragments import (
    NEXT_SEQUENCE,
    OWNER,
    OWNER_COLUMNS,
    PARTS,
    RESERVED,
    announced,
)
from hami_scheduler.adapters.postgres.rows import counters_of

# As RESERVE, for a pod that is on its node already: with its token, and what the grant rests on.
ENTER = f"""
WITH allocation AS (
  INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, policy, score,
                           traceparent, deadline, annotations, origin, reason, token, bound_at,
                           allocated_at, {OWNER_COLUMNS})
  VALUES ($1, $2, $3, $4,
          (SELECT coalesce(max(p.attempt), 0) + 1 FROM allocations p WHERE p.pod_uid = $2),
          $5, $29, $6, $7, $8, CASE WHEN $9 > 0 THEN now() + make_interval(secs => $9) END, $27,
          $30, $31, nextval('allocation_tokens'), now(),
          CASE WHEN $29 = 'allocated' THEN now() END, {OWNER})
  RETURNING attempt, reserved_at, deadline, token
), {PARTS}, event AS (
  INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state, reason, actor, detail)
  VALUES ($2, {NEXT_SEQUENCE.format(pod_uid="$2")}, $1, $29, $31, $24, $32)
  RETURNING id, sequence, at
), {announced("$25", "$26", "$8", "event")}
SELECT {RESERVED}, allocation.token FROM allocation, event
"""

_COUNT = f"""
UPDATE devices SET used_slots = used_slots + $3, used_memory_mib = used_memory_mib + $4,
       used_core_percent = used_core_percent + $5, holdings = holdings || $6::jsonb,
       ceiling_slots = greatest(ceiling_slots, used_slots + $3),
       ceiling_memory_mib = greatest(ceiling_memory_mib, used_memory_mib + $4),
       ceiling_core_percent = greatest(ceiling_core_percent, used_core_percent + $5),
       version = version + 1, updated_at = now()
 WHERE uuid = $1 AND node = $2 AND present
{RETURNING}
"""


async def enter(connection: Connection, entry: Entry, rules: Rules, quota_of: QuotaOf) -> Change:
    """Writes the grant. Raises: CapacityConflict, QuotaConflict."""
    entry = await _beside_others(connection, entry, quota_of) if entry.claims else entry
    draft = entry.draft
    wanted = wanted_by(draft, rules)
    await take_quota(connection, draft.namespace, draft.quota, guarded=entry.guarded)
    if entry.guarded:
        taken = await take_cards(
            connection, draft.allocation_id, draft.placement.node, wanted, mutex=draft.mutex
        )
    else:
        taken = await _count_cards(connection, draft.allocation_id, draft.placement.node, wanted)
    row = await connection.fetchrow(
        ENTER,
        *reserve_arguments(draft, taken, state=entry.state, reason=entry.reason),
        entry.state,
        entry.origin,
        entry.reason,
        dict(entry.evidence),
    )
    await record_claims(connection, draft.allocation_id, entry.claims)
    change = reserved_change(draft, row, taken)
    allocation = replace(
        change.allocation,
        state=entry.state,
        origin=entry.origin,
        reason=entry.reason,
        token=row["token"],
        claims=entry.claims,
    )
    return replace(change, allocation=allocation)


async def _beside_others(connection: Connection, entry: Entry, quota_of: QuotaOf) -> Entry:
    """The entry without the slices that are counted for others who hold them."""
    held = await counted_elsewhere(connection, entry.claims)
    if not held:
        return entry
    placement = entry.draft.placement
    containers = without(placement.containers, entry.claims, held)
    draft = replace(
        entry.draft,
        placement=replace(placement, containers=containers),
        quota=quota_of(containers),
    )
    return replace(entry, draft=draft, claims=counted(entry.claims, held))


async def _count_cards(
    connection: Connection,
    allocation_id: AllocationId,
    node: NodeName,
    held: Sequence[CardDemand],
) -> tuple[CardCounters, ...]:
    """Counts what is held; `held` is in uuid order."""
    rows = await connection.fetchmany(
        _COUNT,
        [
            (
                card.uuid,
                node,
                card.slots,
                card.memory_mib,
                card.core_percent,
                {allocation_id: list(card.details)} if card.details else {},
            )
            for card in held
        ],
    )
    counted = {row["uuid"] for row in rows}
    for card in held:
        if card.uuid not in counted:
            raise CapacityConflict(card.uuid, f"card {card.uuid} is not on node {node}")
    return tuple(counters_of(row) for row in rows)
