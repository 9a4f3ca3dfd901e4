-- What a pod asked for, what it was granted, and whether it is held to that: card by card.
WITH pod AS (
    SELECT coalesce(:pod_uid, (
        SELECT pod_uid FROM (
            (SELECT pod_uid, reserved_at AS at FROM allocations
              WHERE namespace = :namespace AND pod_name = :pod AND reserved_at <= :at
              ORDER BY reserved_at DESC LIMIT 1)
            UNION ALL
            (SELECT pod_uid, at FROM decisions
              WHERE namespace = :namespace AND pod_name = :pod AND outcome <> 'placed'
                AND at <= :at AND at > :at - interval '31 days'
              ORDER BY at DESC LIMIT 1)) named
         ORDER BY at DESC LIMIT 1)) AS uid
), newest AS (
    SELECT a.* FROM pod JOIN allocations a ON a.pod_uid = pod.uid
     WHERE a.reserved_at <= :at ORDER BY a.attempt DESC LIMIT 1
), asked AS (
    SELECT c->>'name' AS container, r->>'vendor' AS vendor, (r->>'count')::bigint AS card_count,
           nullif((r->>'memory_mib')::bigint, 0) * 1048576 AS memory_bytes,
           (r->>'memory_percent')::float8 / 100 AS memory_ratio,
           least((r->>'core_percent')::float8, 100) / 100 AS core_ratio
      FROM (SELECT d.request FROM newest n JOIN decisions d ON d.pod_uid = n.pod_uid
             WHERE d.at <= :at AND d.at > :at - interval '31 days'
             ORDER BY d.at DESC, d.id DESC LIMIT 1) last,
           jsonb_array_elements(last.request->'containers') c, jsonb_array_elements(c->'requests') r
)
SELECT x.container_index, x.position AS card_position_index, a.namespace, a.pod_name, a.pod_uid,
       x.container_name AS container, x.role, a.state, a.attempt AS attempt_count, a.node,
       d.index AS card_index, x.device_uuid, d.type, asked.card_count AS asked_card_count,
       asked.memory_bytes AS asked_memory_bytes, asked.memory_ratio AS asked_memory_ratio,
       asked.core_ratio AS asked_core_ratio, x.memory_mib * 1048576::bigint AS memory_bytes,
       x.core_percent::float8 / 100 AS core_ratio,
       CASE WHEN a.state NOT IN ('bound', 'allocated') THEN NULL
            ELSE coalesce((SELECT p.state FROM limit_periods p
                            WHERE p.pod_uid = a.pod_uid AND p.device_uuid = x.device_uuid
                              AND p.container IN ('', x.container_name)
                              AND p.began_at <= :at AND coalesce(p.ended_at, 'infinity') > :at
                            ORDER BY array_position('{exceeded,bypassed,unknown}', p.state)
                            LIMIT 1),
                          (SELECT 'enforced' FROM limit_checks c WHERE c.node = a.node
                              AND c.checked_at > :at - interval '3 minutes'
                              AND NOT EXISTS (
                                  SELECT FROM device_periods p
                                   WHERE p.device_uuid = d.uuid AND NOT p.present
                                     AND p.began_at <= :at
                                     AND coalesce(p.ended_at, 'infinity') > :at)))
       END AS limit_state, a.reserved_at, a.bound_at, a.allocated_at, a.ended_at
  FROM newest a JOIN allocation_devices x ON x.allocation_id = a.id
  JOIN devices d ON d.uuid = x.device_uuid
  LEFT JOIN asked ON asked.container = x.container_name AND asked.vendor = x.vendor
