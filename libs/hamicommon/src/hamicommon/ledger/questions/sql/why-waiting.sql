-- The stored decisions of one pod, newest first: what was answered then, not what would be now.
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
)
SELECT d.at AS decided_at, d.id AS decision, d.last_at, d.pod_uid, d.namespace, d.pod_name,
       d.outcome, d.node, d.summary, d.message, d.reason_counts, d.candidates AS candidate_count,
       d.repeat_count AS attempt_count, asks.card_count, asks.memory_bytes, asks.memory_ratio,
       asks.core_ratio, (d.phase_ms->>'total')::float8 / 1000 AS decision_s,
       nullif(d.trace_id, '') AS trace_id
  FROM pod JOIN decisions d ON d.pod_uid = pod.uid
  CROSS JOIN LATERAL (
    SELECT greatest(sum(count) FILTER (WHERE role <> 'init'),
                    max(count + coalesce(beside, 0)) FILTER (WHERE role = 'init')) AS card_count,
           nullif(max((r->>'memory_mib')::bigint), 0) * 1048576 AS memory_bytes,
           max((r->>'memory_percent')::float8) / 100 AS memory_ratio,
           max(least((r->>'core_percent')::float8, 100)) / 100 AS core_ratio
      FROM (SELECT r, c.value->>'role' AS role, (r->>'count')::bigint AS count,
                   sum((r->>'count')::bigint) FILTER (WHERE c.value->>'role' = 'sidecar')
                       OVER (ORDER BY c.n) AS beside
              FROM jsonb_array_elements(d.request->'containers') WITH ORDINALITY c (value, n),
                   jsonb_array_elements(c.value->'requests') r) wants) asks
 WHERE d.at <= :at AND d.at > :at - interval '31 days'
