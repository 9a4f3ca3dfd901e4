"""The statements that write and read nodes and cards."""

from __future__ import annotations

HOLDINGS = "jsonb_path_query_array(holdings, '$.*[*].detail')"
"""Of a row of `devices`: the details of all its live slices."""
UPSERT_NODES = """
INSERT INTO nodes (name, source, agent_id, agent_sequence, inventory_at, pair_scores)
SELECT r.name, 'agent', r.agent_id, r.agent_sequence, r.inventory_at, r.pair_scores
  FROM unnest($1::text[], $2::text[], $3::bigint[], $4::timestamptz[], $5::jsonb[])
       AS r(name, agent_id, agent_sequence, inventory_at, pair_scores)
 ORDER BY r.name
ON CONFLICT (name) DO UPDATE SET source = 'agent', agent_id = excluded.agent_id,
       agent_sequence = excluded.agent_sequence, inventory_at = excluded.inventory_at,
       pair_scores = excluded.pair_scores, gone_at = NULL
 WHERE (nodes.agent_id = excluded.agent_id AND nodes.agent_sequence < excluded.agent_sequence)
    OR nodes.source = 'annotation'
    OR (nodes.agent_id <> excluded.agent_id
        AND (nodes.inventory_at IS NULL OR nodes.inventory_at <= excluded.inventory_at
             OR nodes.inventory_at > now() + interval '5 seconds'))
RETURNING name
"""
# In the order of names: two replicas never wait for each other.
# Two runs of a node's agent are ordered by when the bus took their reports, never by the node's
# clock; a date in the future is none (a bus that was restored, a row of an older version).
# An agent's node is taken over only when its Node object was deleted since.
HEARD_NODES = """
WITH heard AS (
  SELECT n.name, r.agent_sequence, r.inventory_at
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::timestamptz[])
         AS r(name, agent_id, agent_sequence, inventory_at)
    JOIN nodes n ON n.name = r.name AND n.agent_id = r.agent_id
   WHERE n.source = 'agent' AND n.gone_at IS NULL AND n.agent_sequence < r.agent_sequence
   ORDER BY n.name FOR NO KEY UPDATE OF n
)
UPDATE nodes n SET agent_sequence = heard.agent_sequence, inventory_at = heard.inventory_at
  FROM heard WHERE n.name = heard.name
RETURNING n.name
"""
FORGET_NUMBER = """
UPDATE nodes n SET agent_sequence = 0
  FROM (SELECT name, agent_sequence FROM nodes WHERE name = $1 FOR NO KEY UPDATE) AS before
 WHERE n.name = before.name
RETURNING before.agent_sequence
"""
UPSERT_ANNOTATED = """
INSERT INTO nodes (name, source, agent_id, agent_sequence, inventory_at, pair_scores)
VALUES ($1, 'annotation', $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE SET source = 'annotation', agent_id = excluded.agent_id,
       agent_sequence = excluded.agent_sequence, inventory_at = excluded.inventory_at,
       pair_scores = CASE WHEN $6 THEN nodes.pair_scores ELSE excluded.pair_scores END,
       gone_at = NULL
 WHERE (nodes.source = 'annotation' OR nodes.gone_at IS NOT NULL
        OR nodes.agent_id = excluded.agent_id)
   AND (nodes.agent_id <> excluded.agent_id OR nodes.agent_sequence <= excluded.agent_sequence
        OR nodes.inventory_at IS NULL
        OR nodes.inventory_at NOT BETWEEN excluded.inventory_at - interval '3 minutes'
                                      AND now() + interval '5 seconds')
RETURNING name
"""
# No agent has the uid of the Node object for its own id: such a row was written here, and lies.
# A version of the Node object that no later one came after for minutes is not believed.
SELECT_CARDS = f"""
SELECT d.uuid, d.node, d.vendor, d.index, d.type, d.slots, d.memory_mib, d.core_percent,
       d.used_slots, d.used_memory_mib, d.used_core_percent, d.numa, d.mode, d.healthy,
       d.health_reason, d.cordoned, d.present, d.mig_profiles, d.info, d.version,
       {HOLDINGS} AS holdings
  FROM devices d
"""
# What an agent reports of its cards, and nothing of what is granted on them.
SELECT_REPORTED = """
SELECT uuid, node, vendor, index, type, slots, memory_mib, core_percent, numa, mode, healthy,
       health_reason, present, mig_profiles, info
  FROM devices WHERE node = ANY($1::text[])
"""
# A card that has left its node and is held by pods of this one never was there.
GRANTED_ELSEWHERE = """
SELECT DISTINCT x.device_uuid AS uuid
  FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id
 WHERE x.device_uuid = ANY($2::text[]) AND a.ended_at IS NULL AND a.node <> $1
"""
NAMES_OF_NODE = "SELECT uuid FROM devices WHERE node = $1"
# A card that enters has a higher version than any that left, so that the sum of versions
# shows a view that one took another's place.
_FRESH_VERSION = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
INSERT_CARD = f"""
INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,
                     ceiling_slots, ceiling_memory_mib, ceiling_core_percent, numa, mode, healthy,
                     health_reason, mig_profiles, info, version)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $6, $7, $8, $9, $10, $11, $12, $13, $14, {_FRESH_VERSION})
"""
UPDATE_CARD = f"""
UPDATE devices SET node = $2, vendor = $3, index = $4, type = $5, slots = $6, memory_mib = $7,
       core_percent = $8, ceiling_slots = greatest($6, used_slots),
       ceiling_memory_mib = greatest($7, used_memory_mib),
       ceiling_core_percent = greatest($8, used_core_percent), numa = $9, mode = $10,
       healthy = $11, health_reason = $12, mig_profiles = $13, info = $14,
       present = $15,
       version = CASE WHEN $15 AND NOT present THEN greatest(version + 1, {_FRESH_VERSION})
                      ELSE version + 1 END,
       updated_at = now()
 WHERE uuid = $1
"""
# All changes of a node at once: a new node has one for each of its cards.
HEALTH = """
WITH event AS (
  INSERT INTO device_health_events (node, device_uuid, healthy, reason)
  SELECT $1, c.uuid, c.healthy, c.reason
    FROM unnest($2::text[], $3::boolean[], $4::text[]) WITH ORDINALITY
         AS c(uuid, healthy, reason, position)
   ORDER BY c.position
  RETURNING id, device_uuid, healthy, reason, at
), announced AS (
  INSERT INTO outbox (subject, payload)
  SELECT CASE WHEN healthy THEN $5 ELSE $6 END,
         jsonb_build_object('version', 1, 'event_id', id, 'node', $1::text, 'uuid', device_uuid,
                            'healthy', healthy, 'reason', reason, 'at', at)
    FROM event ORDER BY id
), woken AS (
  SELECT pg_notify('hami_outbox', '')
)
SELECT id, device_uuid, healthy, reason, at FROM event, woken ORDER BY id
"""
CORDON = """
UPDATE devices SET cordoned = (uuid = ANY($2::text[])), version = version + 1, updated_at = now()
 WHERE node = $1 AND cordoned <> (uuid = ANY($2::text[]))
RETURNING uuid
"""
# In the order of names, as above.
SET_GROUPS = """
WITH wished AS (
  SELECT n.name, w.node_group, n.node_group AS before
    FROM unnest($1::text[], $2::text[]) AS w(name, node_group) JOIN nodes n ON n.name = w.name
   ORDER BY n.name FOR NO KEY UPDATE OF n
), changed AS (
  UPDATE nodes n SET node_group = wished.node_group FROM wished
   WHERE n.name = wished.name AND wished.before IS DISTINCT FROM wished.node_group
)
SELECT name FROM wished
"""
GONE = """
UPDATE nodes SET gone_at = now() WHERE name = $1 AND gone_at IS NULL RETURNING name
"""
