"""Queries for violations of the guarantees SAFE-1, SAFE-2, SAFE-6 and SAFE-7 in the ledger.

Each row of an answer is one sentence about one card or pod. `hamictl db check` runs them on any
installation, the tests run them after every fault.
"""

from __future__ import annotations

from collections.abc import Mapping

from hamicommon.ledger.connection import Connection
from hamicommon.ledger.footprint import footprint

SHOWN = 5
"""Maximum number of reported violations per guarantee."""

_HELD = f"""
WITH footprints AS (
    SELECT x.device_uuid, {footprint("slots")} AS slots, {footprint("memory_mib")} AS memory_mib,
           {footprint("core_percent")} AS core_percent
      FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id
     WHERE a.state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')
     GROUP BY x.allocation_id, x.device_uuid
), held AS (
    SELECT device_uuid, sum(slots) AS slots, sum(memory_mib) AS memory_mib,
           sum(core_percent) AS core_percent
      FROM footprints GROUP BY device_uuid
)
"""

INVARIANTS: Mapping[str, str] = {
    "SAFE-1: a card gives at most what it has": """
SELECT format('card %s on %s gave %s of %s slots, %s of %s memory, %s of %s cores', uuid, node,
              used_slots, slots, used_memory_mib, memory_mib, used_core_percent, core_percent)
  FROM devices
 WHERE (used_slots > slots AND used_slots > ceiling_slots)
    OR (used_memory_mib > memory_mib AND used_memory_mib > ceiling_memory_mib)
    OR (used_core_percent > core_percent AND used_core_percent > ceiling_core_percent)
    OR least(used_slots, used_memory_mib, used_core_percent) < 0
 ORDER BY uuid
""",
    "SAFE-1: a card's counters are the sum of its live grants": f"""
{_HELD}
SELECT format('card %s on %s counts %s slots, %s memory, %s cores; its live grants are %s, %s, %s',
              d.uuid, d.node, d.used_slots, d.used_memory_mib, d.used_core_percent,
              coalesce(h.slots, 0), coalesce(h.memory_mib, 0), coalesce(h.core_percent, 0))
  FROM devices d LEFT JOIN held h ON h.device_uuid = d.uuid
 WHERE (d.used_slots, d.used_memory_mib, d.used_core_percent) IS DISTINCT FROM
       (coalesce(h.slots, 0), coalesce(h.memory_mib, 0), coalesce(h.core_percent, 0))
 ORDER BY d.uuid
""",
    "SAFE-1: a card's slices with a place on it belong to live grants": """
SELECT format('card %s on %s holds a slice for %s, which is no live grant', d.uuid, d.node, h.id)
  FROM devices d CROSS JOIN LATERAL jsonb_object_keys(d.holdings) AS h (id)
 WHERE NOT EXISTS (SELECT FROM allocations a WHERE a.id::text = h.id AND a.ended_at IS NULL)
 ORDER BY d.uuid
""",
    "SAFE-7: a room fits on its cards beside all who do not end for it": f"""
WITH rooms AS (
    SELECT DISTINCT r.id FROM allocations r JOIN preempted p ON p.room_id = r.id
     WHERE r.ended_at IS NULL AND r.state = 'reserved'
), counted AS (
    SELECT r.id, x.device_uuid, x.allocation_id, {footprint("slots")} AS slots,
           {footprint("memory_mib")} AS memory_mib, {footprint("core_percent")} AS core_percent
      FROM rooms r
      JOIN (SELECT DISTINCT allocation_id, device_uuid FROM allocation_devices) own
        ON own.allocation_id = r.id
      JOIN allocation_devices x ON x.device_uuid = own.device_uuid
      JOIN allocations a ON a.id = x.allocation_id AND a.ended_at IS NULL
     WHERE NOT EXISTS (SELECT FROM preempted p WHERE p.room_id = r.id AND p.victim_id = a.id)
     GROUP BY r.id, x.device_uuid, x.allocation_id
), beside AS (
    SELECT id, device_uuid, sum(slots) AS slots, sum(memory_mib) AS memory_mib,
           sum(core_percent) AS core_percent FROM counted GROUP BY id, device_uuid
)
SELECT format('room %s on card %s of %s: %s of %s slots, %s of %s memory without who ends for it',
              b.id, d.uuid, d.node, b.slots, d.slots, b.memory_mib, d.memory_mib)
  FROM beside b JOIN devices d ON d.uuid = b.device_uuid
 WHERE d.present AND (b.slots > d.slots OR b.memory_mib > d.memory_mib)
 ORDER BY d.uuid
""",
    "SAFE-7: only a room may be where another's slice still is": """
SELECT format('card %s on %s counts grant %s as a room, which it is not', d.uuid, d.node, h.id)
  FROM devices d CROSS JOIN LATERAL jsonb_each(d.holdings) AS h (id, slices)
 WHERE h.slices @> '[{"room": true}]' AND NOT EXISTS (
           SELECT FROM allocations a WHERE a.id::text = h.id AND a.state = 'reserved')
 ORDER BY d.uuid
""",
    "SAFE-2: a pod has one live grant": """
SELECT format('pod %s has %s live grants', pod_uid, count(*)) FROM allocations
 WHERE state IN ('reserved', 'binding', 'bound', 'allocated', 'releasing')
 GROUP BY pod_uid HAVING count(*) > 1 ORDER BY pod_uid
""",
    "SAFE-2: the period of every grant that ended is kept, and so apart from the pod's others": """
SELECT format('allocation %s of pod %s held %s, but %s is kept', a.id, a.pod_uid,
              hami_held(a.reserved_at, a.ended_at), coalesce(p.held::text, 'nothing'))
  FROM allocations a LEFT JOIN allocation_periods p ON p.allocation_id = a.id
 WHERE a.ended_at IS NOT NULL AND p.held IS DISTINCT FROM hami_held(a.reserved_at, a.ended_at)
 ORDER BY a.pod_uid
""",
    "SAFE-6: the events of a pod are numbered without a gap": """
SELECT format('pod %s has %s events, numbered %s to %s', pod_uid, count(*), min(sequence),
              max(sequence))
  FROM allocation_events GROUP BY pod_uid
HAVING count(*) <> max(sequence) OR min(sequence) <> 1 ORDER BY pod_uid
""",
    "SAFE-6: every event goes on from the one before": """
SELECT format('event %s of pod %s goes from %s, but the one before ended in %s', sequence, pod_uid,
              coalesce(previous_state, 'nothing'), coalesce(before, 'nothing'))
  FROM (SELECT pod_uid, sequence, previous_state,
               lag(state) OVER (PARTITION BY allocation_id ORDER BY sequence) AS before
          FROM allocation_events) e
 WHERE previous_state IS DISTINCT FROM before ORDER BY pod_uid, sequence
""",
    "SAFE-6: the last event of a grant has its state": """
SELECT format('allocation %s of pod %s is %s, but its last event has %s', a.id, a.pod_uid, a.state,
              coalesce(e.state, 'nothing'))
  FROM allocations a
  LEFT JOIN (SELECT DISTINCT ON (allocation_id) allocation_id, state FROM allocation_events
              ORDER BY allocation_id, sequence DESC) e ON e.allocation_id = a.id
 WHERE e.state IS DISTINCT FROM a.state ORDER BY a.pod_uid
""",
}
"""Query for violations, by guarantee.

A card that shrank may hold more than it has now, up to its ceiling (architecture 2.1).
"""


async def broken(connection: Connection) -> list[str]:
    """Return sentences about violations, at most `SHOWN` per guarantee; empty if there are none."""
    found = []
    for promise, query in INVARIANTS.items():
        rows = await connection.fetch(f"{query} LIMIT {SHOWN}")
        found += [f"{promise}; but {row[0]}" for row in rows]
    return found
