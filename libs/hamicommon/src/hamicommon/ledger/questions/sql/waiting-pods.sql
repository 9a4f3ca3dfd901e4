-- A refused pod waits until it is placed, gone or ended. What it asks for is per card.
WITH waiting AS (
    SELECT d.* FROM decisions d
     WHERE d.outcome <> 'placed' AND d.at <= :at AND d.at > :at - interval '31 days'
       AND (d.wait_ended_at > :at
            OR (d.wait_ended_at = '-infinity' AND d.last_at > :at - interval '10 minutes'))
       AND NOT EXISTS (SELECT FROM decisions later
                        WHERE later.pod_uid = d.pod_uid AND later.at BETWEEN d.at AND :at
                          AND (later.at, later.id) > (d.at, d.id))
       AND NOT EXISTS (SELECT FROM allocations a
                        WHERE a.pod_uid = d.pod_uid AND a.reserved_at <= :at
                          AND (a.ended_at IS NULL OR a.ended_at > :at))
), since AS (
    SELECT f.pod_uid, min(f.at) AS since_at FROM decisions f
     WHERE f.pod_uid IN (SELECT pod_uid FROM waiting) AND f.outcome <> 'placed'
       AND f.at <= :at AND f.at > :at - interval '31 days'
     GROUP BY f.pod_uid
), listed AS MATERIALIZED (
    SELECT w.*, coalesce((SELECT key FROM jsonb_each_text(w.reason_counts)
                  ORDER BY value::numeric DESC, key LIMIT 1), 'unknown') AS reason_code,
           s.since_at
      FROM waiting w JOIN since s ON s.pod_uid = w.pod_uid
)
SELECT w.since_at, w.pod_uid, w.namespace, w.pod_name, w.last_at, w.repeat_count AS attempt_count,
       asks.card_count, asks.memory_bytes, asks.memory_ratio, asks.core_ratio, w.reason_code,
       w.reason_counts, w.candidates AS candidate_count, w.summary,
       nullif(w.trace_id, '') AS trace_id,
       (count(*) OVER (ORDER BY w.since_at, w.pod_uid) - 1)::bigint AS ahead_count
  FROM listed w CROSS JOIN LATERAL (
    SELECT greatest(sum(count) FILTER (WHERE role <> 'init'),
                    max(count + coalesce(beside, 0)) FILTER (WHERE role = 'init')) AS card_count,
           nullif(max((r->>'memory_mib')::bigint), 0) * 1048576 AS memory_bytes,
           max((r->>'memory_percent')::float8) / 100 AS memory_ratio,
           max(least((r->>'core_percent')::float8, 100)) / 100 AS core_ratio
      FROM (SELECT r, c.value->>'role' AS role, (r->>'count')::bigint AS count,
                   sum((r->>'count')::bigint) FILTER (WHERE c.value->>'role' = 'sidecar')
                       OVER (ORDER BY c.n) AS beside
              FROM jsonb_array_elements(w.request->'containers') WITH ORDINALITY c (value, n),
                   jsonb_array_elements(c.value->'requests') r) wants) asks
 WHERE (:namespace IS NULL OR w.namespace = :namespace)
   AND (:reason IS NULL OR w.reason_code = :reason)
