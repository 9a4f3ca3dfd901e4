"""Statements that write allocations: new grants, state changes, their events, and claims.

Each takes arrays, one element per allocation, so a batch of one is also a batch. A slice that pods
share by a ResourceClaim is counted for the first of them; when that one ends, it is counted for the
next, and the card's row does not change. It is freed with the last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from hamicommon.domain.allocations import (
    LIVE_STATES,
    Allocation,
    AllocationState,
    ClaimedSlice,
    ContainerGrant,
    SliceKey,
)
from hamicommon.domain.ids import AllocationId, PodUid
from hamicommon.domain.pod_ref import PodOwner
from hamicommon.domain.requests import Policy
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.model import Entry, StateStep

from hami_scheduler.adapters.postgres.rows import SELECT_ALLOCATION, allocation_of

SHARE_COLUMNS = """
allocation_id, container_index, position, container_name, role, sidecar, device_uuid, vendor,
memory_mib, core_percent, slots, type, detail
"""
# The version before 0033 knows two roles: to it a sidecar is one of the app containers.
SHARE_VALUES = """
s.container_index, s.position, s.container_name,
CASE s.role WHEN 'sidecar' THEN 'app' ELSE s.role END, s.role = 'sidecar', s.device_uuid, s.vendor,
s.memory_mib, s.core_percent, s.slots, s.type, s.detail
"""

# `sequence` is the pod's highest plus one. Two writers of one pod are kept apart by the row lock of
# its allocation and by the unique key, so the numbers have no gap. The relay announces events that
# have no `published_at` (`hamicommon/ledger/outbox`): how an attempt ended, not that it began.
_EVENTS = """
step AS (
  SELECT s.*, row_number() OVER (PARTITION BY s.pod_uid ORDER BY s.number)
              + (SELECT coalesce(max(e.sequence), 0) FROM allocation_events e
                  WHERE e.pod_uid = s.pod_uid) AS sequence
    FROM unnest(${}::uuid[], ${}::text[], ${}::text[], ${}::text[], ${}::text[], ${}::text[],
                ${}::jsonb[]) WITH ORDINALITY
           AS s (allocation_id, pod_uid, previous_state, state, reason, actor, detail, number)
), event AS (
  INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state, reason,
                                 actor, detail, published_at)
  SELECT pod_uid, sequence, allocation_id, previous_state, state, reason, actor, detail,
         CASE WHEN state IN ('reserved', 'binding') THEN now() END
    FROM step ORDER BY number
)
"""
_EVENT_WIDTH = 7


def _events_from(first: int) -> str:
    """Return the SQL expressions of new events, whose arrays begin at this parameter."""
    return _EVENTS.format(*range(first, first + _EVENT_WIDTH))


# A server whose clock is behind the one before it starts no period within the pod's last one.
_INSERT_GRANTS = f"""
WITH given AS (
  SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
                       $7::text[], $8::text[], $9::jsonb[], $10::float8[], $11::text[],
                       $12::float8[], $13::jsonb[], $14::jsonb[])
             AS g (id, pod_uid, namespace, pod_name, node, state, origin, reason, policy, score,
                   traceparent, lease_s, annotations, owner)
), allocation AS (
  INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, origin, reason,
                           policy, score, traceparent, annotations, token, deadline, reserved_at,
                           binding_at, bound_at, allocated_at, owner_kind, owner_name, owner_uid,
                           deployment, service_account, created_by, labels)
  SELECT g.id, g.pod_uid, g.namespace, g.pod_name, coalesce(before.attempt, 0) + 1, g.node, g.state,
         g.origin, g.reason, g.policy, g.score, g.traceparent, g.annotations,
         nextval('allocation_tokens'),
         CASE WHEN g.lease_s <> 0 THEN now() + make_interval(secs => g.lease_s) END,
         greatest(now(), before.ended_at),
         CASE WHEN g.state = 'binding' THEN now() END,
         CASE WHEN g.state IN ('bound', 'allocated') THEN now() END,
         CASE WHEN g.state = 'allocated' THEN now() END,
         g.owner->>'kind', g.owner->>'name', g.owner->>'uid', g.owner->>'deployment',
         g.owner->>'service_account', g.owner->>'created_by', g.owner->'labels'
    FROM given g CROSS JOIN LATERAL (
           SELECT max(p.attempt) AS attempt, max(p.ended_at) AS ended_at
             FROM allocations p WHERE p.pod_uid = g.pod_uid) AS before
  RETURNING id, node, attempt, token, reserved_at, deadline
), containers AS (
  INSERT INTO allocation_containers (allocation_id, container_index, name, role)
  SELECT * FROM unnest($15::uuid[], $16::smallint[], $17::text[], $18::text[])
), shares AS (
  INSERT INTO allocation_devices ({SHARE_COLUMNS})
  SELECT s.allocation_id, {SHARE_VALUES}
    FROM unnest($19::uuid[], $20::smallint[], $21::smallint[], $22::text[], $23::text[],
                $24::text[], $25::text[], $26::int[], $27::int[], $28::int[], $29::text[],
                $30::jsonb[])
           AS s (allocation_id, container_index, position, container_name, role, device_uuid,
                 vendor, memory_mib, core_percent, slots, type, detail)
), {_events_from(31)}
SELECT a.attempt, a.token, a.reserved_at, a.deadline, n.source = 'agent' AS has_agent, step.sequence
  FROM step JOIN allocation a ON a.id = step.allocation_id JOIN nodes n ON n.name = a.node
 ORDER BY step.number
"""

_WRITE_STEPS = f"""
WITH changed AS (
  UPDATE allocations a
     SET state = w.state, reason = w.reason,
         token = CASE WHEN w.new_token THEN nextval('allocation_tokens') ELSE a.token END,
         deadline = now() + make_interval(secs => w.lease_s),
         binding_at = CASE WHEN w.state = 'binding' THEN now() ELSE a.binding_at END,
         bound_at = CASE WHEN w.state IN ('bound', 'allocated') THEN coalesce(a.bound_at, now())
                         ELSE a.bound_at END,
         allocated_at = CASE WHEN w.state = 'allocated' THEN coalesce(a.allocated_at, now())
                             ELSE a.allocated_at END,
         ended_at = CASE WHEN w.ends THEN now() END
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bool[], $5::float8[], $6::bool[])
           AS w (id, state, reason, new_token, lease_s, ends)
   WHERE a.id = w.id
  RETURNING a.id, a.token, a.deadline
), {_events_from(7)}
SELECT step.sequence, changed.token, changed.deadline
  FROM step JOIN changed ON changed.id = step.allocation_id ORDER BY step.number
"""

_INSERT_EVENTS = f"WITH {_events_from(1)} SELECT sequence FROM step ORDER BY number"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """Event of an allocation that is to be written."""

    allocation_id: AllocationId
    pod_uid: PodUid
    previous: AllocationState | None
    state: AllocationState
    reason: str
    actor: str
    detail: Mapping[str, Any] = field(default_factory=dict)


async def insert_grants(
    connection: Connection, entries: Sequence[Entry], events: Sequence[NewEvent]
) -> list[Any]:
    """Insert grants with containers, slices and a first event each.

    Returns in order the rows (attempt, token, reserved_at, deadline, has_agent, sequence).
    """
    grants, containers, shares = [], [], []
    for entry in entries:
        draft = entry.draft
        parts = draft.placement.containers
        grants.append(
            (
                *(draft.allocation_id, draft.pod_uid, draft.namespace, draft.pod_name),
                *(draft.placement.node, entry.state.value, entry.origin.value, entry.reason),
                *(_policy_json(draft.policy), draft.placement.score, draft.traceparent),
                *(draft.lease_s, dict(draft.annotations)),
                None if draft.owner is None else _owner_json(draft.owner),
            )
        )
        containers += [(draft.allocation_id, c.index, c.name, _stored_role(c)) for c in parts]
        shares += [(draft.allocation_id, *row) for row in share_rows(parts)]
    arrays = (*columns(grants, 14), *columns(containers, 4), *columns(shares, 12))
    return list(await connection.fetch(_INSERT_GRANTS, *arrays, *_event_columns(events)))


async def write_steps(
    connection: Connection, last: Sequence[StateStep], events: Sequence[NewEvent]
) -> list[Any]:
    """Write the last state of each allocation, and the events of all its steps.

    Returns in the order of the events the rows (sequence, token, deadline).
    """
    rows = [
        (
            *(step.allocation_id, step.target.value, step.reason, step.new_token),
            *(step.lease_s, step.target not in LIVE_STATES),
        )
        for step in last
    ]
    return list(await connection.fetch(_WRITE_STEPS, *columns(rows, 6), *_event_columns(events)))


async def insert_events(connection: Connection, events: Sequence[NewEvent]) -> list[int]:
    """Insert events of changes other than steps; return their sequence numbers."""
    rows = await connection.fetch(_INSERT_EVENTS, *_event_columns(events))
    return [row["sequence"] for row in rows]


def _event_columns(events: Sequence[NewEvent]) -> list[list[Any]]:
    rows = [
        (
            *(event.allocation_id, event.pod_uid),
            None if event.previous is None else event.previous.value,
            *(event.state.value, event.reason, event.actor, dict(event.detail)),
        )
        for event in events
    ]
    return columns(rows, _EVENT_WIDTH)


def columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Return the rows as one array per column."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * width


def share_rows(containers: Sequence[ContainerGrant]) -> list[tuple[Any, ...]]:
    """Return the slices of the containers in the order of SHARE_COLUMNS, without the allocation."""
    return [
        (
            *(container.index, position, container.name, container.role, share.uuid),
            *(share.vendor, share.memory_mib, share.core_percent, share.slots, share.type),
            dict(share.detail),
        )
        for container in containers
        for position, share in enumerate(container.shares)
    ]


def _stored_role(container: ContainerGrant) -> str:
    """Return the role for `allocation_containers`, in which sidecars are app containers."""
    return "init" if container.role == "init" else "app"


def _policy_json(policy: Policy | None) -> dict[str, Any]:
    return {} if policy is None else {"node": policy.node, "gpu": list(policy.gpu)}


def _owner_json(owner: PodOwner) -> dict[str, Any]:
    fields = {each.name: getattr(owner, each.name) for each in dataclasses.fields(owner)}
    return {**fields, "labels": dict(owner.labels)}


# One grant of a claim after the other, so that not two of them are the first.
_TURN = """
SELECT pg_advisory_xact_lock(hashtextextended(uid, 24))
  FROM (SELECT DISTINCT uid FROM unnest($1::text[]) AS uid ORDER BY uid) claims
"""
_HELD = """
SELECT k.claim_uid, k.request, k.share_id
  FROM unnest($1::text[], $2::text[], $3::text[]) AS w (claim_uid, request, share_id)
  JOIN allocation_claims k USING (claim_uid, request, share_id)
  JOIN allocations a ON a.id = k.allocation_id
 WHERE k.counted AND a.ended_at IS NULL
 ORDER BY a.id FOR UPDATE OF a
"""
_INSERT = """
INSERT INTO allocation_claims (allocation_id, container_index, position, claim_uid, claim_name,
                               request, share_id, device_uuid, vendor, memory_mib, core_percent,
                               slots, counted)
SELECT $1, s.* FROM unnest($2::smallint[], $3::smallint[], $4::text[], $5::text[], $6::text[],
                           $7::text[], $8::text[], $9::text[], $10::int[], $11::int[], $12::int[],
                           $13::bool[]) AS s
"""
_SHARING = """
  FROM allocation_claims mine JOIN allocation_claims k USING (claim_uid, request, share_id)
  JOIN allocations a ON a.id = k.allocation_id
 WHERE mine.allocation_id = $1 AND mine.counted AND k.allocation_id <> $1 AND a.ended_at IS NULL
"""
_LOCK_HOLDERS = f"""
SELECT a.id FROM allocations a WHERE a.id IN (SELECT k.allocation_id {_SHARING})
 ORDER BY a.id FOR UPDATE
"""
_NEXT_HOLDERS = f"""
SELECT DISTINCT ON (k.claim_uid, k.request, k.share_id)
       k.claim_uid, k.request, k.share_id, k.allocation_id::text AS allocation_id,
       k.container_index, k.position
{_SHARING}
 ORDER BY k.claim_uid, k.request, k.share_id, a.reserved_at, a.id, k.container_index, k.position
"""
_COUNT = """
WITH slice AS (
  UPDATE allocation_claims SET counted = true
   WHERE allocation_id = $1 AND container_index = $2 AND position = $3
  RETURNING *
)
INSERT INTO allocation_devices (allocation_id, container_index, position, container_name, role,
                                device_uuid, vendor, memory_mib, core_percent, slots)
SELECT s.allocation_id, s.container_index,
       (SELECT coalesce(max(d.position) + 1, 0) FROM allocation_devices d
         WHERE d.allocation_id = $1 AND d.container_index = $2),
       c.name, c.role, s.device_uuid, s.vendor, s.memory_mib, s.core_percent, s.slots
  FROM slice s JOIN allocation_containers c USING (allocation_id, container_index)
"""
# From now on it is counted for this pod: sums over time count no moment twice.
_SINCE_NOW = """
UPDATE allocations SET reserved_at = now(), bound_at = now(),
       allocated_at = CASE WHEN allocated_at IS NOT NULL THEN now() END
 WHERE id = $1
"""


async def counted_elsewhere(
    connection: Connection, claims: Sequence[ClaimedSlice]
) -> Set[SliceKey]:
    """Return which of these slices count for another live grant.

    Until the transaction ends, no other one enters a grant of these claims or ends one of those
    grants.
    """
    await connection.fetch(_TURN, [each.claim_uid for each in claims])
    columns = [list(column) for column in zip(*(each.key for each in claims), strict=True)]
    return {
        (row["claim_uid"], row["request"], row["share_id"])
        for row in await connection.fetch(_HELD, *columns)
    }


async def record_claims(
    connection: Connection, allocation_id: AllocationId, claims: Sequence[ClaimedSlice]
) -> None:
    """Write the slices that the pod uses by claims."""
    if not claims:
        return
    rows = [
        (
            *(each.container, each.position, each.claim_uid, each.claim, each.request),
            *(each.share_id, each.share.uuid, each.share.vendor, each.share.memory_mib),
            *(each.share.core_percent, each.share.slots, each.counted),
        )
        for each in claims
    ]
    await connection.execute(_INSERT, allocation_id, *map(list, zip(*rows, strict=True)))


async def passed_on(connection: Connection, old: Allocation, actor: str) -> Set[SliceKey]:
    """Count the slices of the ending, locked `old` for the pods that share them.

    Returns which have such a holder; the others are to be given back.
    """
    if not any(each.counted for each in old.claims):
        return frozenset()
    if not await connection.fetch(_LOCK_HOLDERS, old.id):
        return frozenset()
    rows = await connection.fetch(_NEXT_HOLDERS, old.id)
    for row in rows:
        place = (row["allocation_id"], row["container_index"], row["position"])
        await connection.execute(_COUNT, *place)
    reason = f"shares the slices that are already counted for pod {old.pod_name}"
    for heir in sorted({row["allocation_id"] for row in rows}):
        await connection.execute(_SINCE_NOW, heir)
        allocation = allocation_of(
            await connection.fetchrow(f"{SELECT_ALLOCATION} WHERE a.id = $1", heir)
        )
        event = NewEvent(
            allocation_id=allocation.id,
            pod_uid=allocation.pod_uid,
            previous=allocation.state,
            state=allocation.state,
            reason=reason,
            actor=actor,
            detail={"from_pod_uid": old.pod_uid, "from_allocation_id": old.id},
        )
        await insert_events(connection, [event])
    return {(row["claim_uid"], row["request"], row["share_id"]) for row in rows}
