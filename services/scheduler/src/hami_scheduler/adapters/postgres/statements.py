"""The statements that write an allocation with its event and announcement, each one round trip.

`allocation_events.sequence` is the pod's highest plus one; two writers of one pod are kept apart by
the row lock of its allocation and by the unique key, so the numbers have no gap.
"""

from __future__ import annotations

from hami_scheduler.adapters.postgres.rows import COLUMNS, HOLDINGS, LIVE_SQL

_NEXT_SEQUENCE = """
(SELECT coalesce(max(e.sequence), 0) + 1 FROM allocation_events e WHERE e.pod_uid = {pod_uid})
"""

INSERT_SHARES = """
INSERT INTO allocation_devices (allocation_id, container_index, position, container_name, role,
                                device_uuid, vendor, memory_mib, core_percent, slots, type, detail)
SELECT $1, s.* FROM unnest($2::smallint[], $3::smallint[], $4::text[], $5::text[], $6::text[],
                           $7::text[], $8::int[], $9::int[], $10::int[], $11::text[],
                           $12::jsonb[]) AS s
"""
DELETE_SHARES = "DELETE FROM allocation_devices WHERE allocation_id = $1"

_OWNER_COLUMNS = """
owner_kind, owner_name, owner_uid, deployment, service_account, created_by, labels
"""
_OWNER = """
$28::jsonb->>'kind', $28::jsonb->>'name', $28::jsonb->>'uid', $28::jsonb->>'deployment',
$28::jsonb->>'service_account', $28::jsonb->>'created_by', $28::jsonb->'labels'
"""

_ALLOCATION_COLUMNS = f"""
id, pod_uid, namespace, pod_name, attempt, node, state, policy, score, traceparent, deadline,
annotations, reserved_at, {_OWNER_COLUMNS}
"""
# A server whose clock is behind the one before it starts no period within the pod's last one.
_ALLOCATION_VALUES = f"""
$1, $2, $3, $4, (SELECT coalesce(max(p.attempt), 0) + 1 FROM allocations p WHERE p.pod_uid = $2),
$5, 'reserved', $6, $7, $8, now() + make_interval(secs => $9), $27,
greatest(now(), (SELECT max(p.ended_at) FROM allocations p WHERE p.pod_uid = $2)),
{_OWNER}
"""
_CONTAINERS = "unnest($10::smallint[], $11::text[], $12::text[]) AS c"
_SHARES = """
unnest($13::smallint[], $14::smallint[], $15::text[], $16::text[], $17::text[], $18::text[],
       $19::int[], $20::int[], $21::int[], $22::text[], $23::jsonb[]) AS s
"""
_SHARE_COLUMNS = """
allocation_id, container_index, position, container_name, role, device_uuid, vendor, memory_mib,
core_percent, slots, type, detail
"""
_RESERVED = """
allocation.attempt, allocation.reserved_at, allocation.deadline, event.sequence,
(SELECT source = 'agent' FROM nodes WHERE name = $5) AS has_agent
"""

_PARTS = f"""containers AS (
  INSERT INTO allocation_containers (allocation_id, container_index, name, role)
  SELECT $1, c.* FROM {_CONTAINERS}
), shares AS (
  INSERT INTO allocation_devices ({_SHARE_COLUMNS}) SELECT $1, s.* FROM {_SHARES}
)"""
"""The containers of the allocation, and their slices."""


def _announced(subject: str, payload: str, traceparent: str, source: str) -> str:
    """The outbox row of the event; `payload` gets what only the statement knows of it."""
    return f"""announced AS (
  INSERT INTO outbox (subject, payload, traceparent)
  SELECT {subject}, {payload}::jsonb
              || jsonb_build_object('event_id', event.id, 'sequence', event.sequence,
                                    'at', event.at),
         {traceparent}
    FROM {source}
)"""


RESERVE = f"""
WITH allocation AS (
  INSERT INTO allocations ({_ALLOCATION_COLUMNS}) VALUES ({_ALLOCATION_VALUES})
  RETURNING attempt, reserved_at, deadline
), {_PARTS}, event AS (
  INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state, actor)
  VALUES ($2, {_NEXT_SEQUENCE.format(pod_uid="$2")}, $1, 'reserved', $24)
  RETURNING id, sequence, at
), {_announced("$25", "$26", "$8", "event")}
SELECT {_RESERVED} FROM allocation, event
"""

# As RESERVE, for a pod that is on its node already: with its token, and what the grant rests on.
ENTER = f"""
WITH allocation AS (
  INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, policy, score,
                           traceparent, deadline, annotations, origin, reason, token, bound_at,
                           allocated_at, {_OWNER_COLUMNS})
  VALUES ($1, $2, $3, $4,
          (SELECT coalesce(max(p.attempt), 0) + 1 FROM allocations p WHERE p.pod_uid = $2),
          $5, $29, $6, $7, $8, CASE WHEN $9 > 0 THEN now() + make_interval(secs => $9) END, $27,
          $30, $31, nextval('allocation_tokens'), now(),
          CASE WHEN $29 = 'allocated' THEN now() END, {_OWNER})
  RETURNING attempt, reserved_at, deadline, token
), {_PARTS}, event AS (
  INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state, reason, actor, detail)
  VALUES ($2, {_NEXT_SEQUENCE.format(pod_uid="$2")}, $1, $29, $31, $24, $32)
  RETURNING id, sequence, at
), {_announced("$25", "$26", "$8", "event")}
SELECT {_RESERVED}, allocation.token FROM allocation, event
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
  INSERT INTO allocations ({_ALLOCATION_COLUMNS}) SELECT {_ALLOCATION_VALUES} FROM taken
  RETURNING attempt, reserved_at, deadline
), containers AS (
  INSERT INTO allocation_containers (allocation_id, container_index, name, role)
  SELECT $1, c.* FROM taken, {_CONTAINERS}
), shares AS (
  INSERT INTO allocation_devices ({_SHARE_COLUMNS}) SELECT $1, s.* FROM taken, {_SHARES}
), event AS (
  INSERT INTO allocation_events (pod_uid, sequence, allocation_id, state, actor)
  SELECT $2, {_NEXT_SEQUENCE.format(pod_uid="$2")}, $1, 'reserved', $24 FROM taken
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
SELECT {_RESERVED}, taken.* FROM allocation, event, taken
"""

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
                           {_OWNER_COLUMNS})
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
  INSERT INTO allocation_devices ({_SHARE_COLUMNS})
  SELECT s.* FROM granted d
    JOIN unnest($26::uuid[], $27::smallint[], $28::smallint[], $29::text[], $30::text[],
                $31::text[], $32::text[], $33::int[], $34::int[], $35::int[], $36::text[],
                $37::jsonb[])
           AS s ({_SHARE_COLUMNS}) ON s.allocation_id = d.id
), event AS (
  INSERT INTO allocation_events (pod_uid, sequence, allocation_id, previous_state, state, actor)
  SELECT d.pod_uid, {_NEXT_SEQUENCE.format(pod_uid="d.pod_uid")} + s.number, d.id, s.previous,
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
  SELECT a.pod_uid, {_NEXT_SEQUENCE.format(pod_uid="a.pod_uid")}, a.id, $2, $3, $4, $8
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
), {_STEP_EVENT}, {_announced("$9", "$10", "a.traceparent", "event, allocation a")}
SELECT a.id::text AS id, a.pod_uid, a.namespace, a.pod_name, a.attempt, a.node, a.state, a.token,
       a.reserved_at, a.deadline, a.traceparent, a.reason, event.sequence
  FROM allocation a, event
"""

RECORD_MOVE = f"""
WITH allocation AS (
  SELECT pod_uid, traceparent FROM allocations WHERE id = $1
), event AS (
  INSERT INTO allocation_events
         (pod_uid, sequence, allocation_id, previous_state, state, reason, actor, detail)
  SELECT a.pod_uid, {_NEXT_SEQUENCE.format(pod_uid="a.pod_uid")}, $1, $2, $2, $3, $4, $5
    FROM allocation a
  RETURNING id, sequence, at
), {_announced("$6", "$7", "a.traceparent", "event, allocation a")}
SELECT sequence FROM event
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
  SELECT a.pod_uid, {_NEXT_SEQUENCE.format(pod_uid="a.pod_uid")} + s.number, a.id, s.source,
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
  SELECT a.pod_uid, {_NEXT_SEQUENCE.format(pod_uid="a.pod_uid")}, a.id, 'reserved', a.state,
         a.reason, a.actor
    FROM allocation a
  RETURNING id, allocation_id, sequence, at
), {_announced_steps("$5::text", "a.state", "a.reason")}
SELECT {COLUMNS}
  FROM event JOIN allocation a ON a.id = event.allocation_id JOIN nodes n ON n.name = a.node
"""

ANNOTATE = """
UPDATE allocations a SET annotations = a.annotations || $3::jsonb
 WHERE a.id = $1 AND a.token = $2 AND a.ended_at IS NULL
RETURNING a.id
"""
