-- A refused pod waits until it is placed, gone or ended. What it asks for is per card.
-- kube-scheduler owns the queue: `ahead_count` is no promise of an order or a time.
SELECT w.since_at, w.pod_uid, w.namespace, w.pod_name, w.last_at, w.repeat_count AS attempt_count,
       asked.card_count, asked.memory_bytes, asked.memory_ratio, asked.core_ratio, w.reason_code,
       w.reason_counts, w.candidates AS candidate_count, w.summary,
       nullif(w.trace_id, '') AS trace_id,
       (count(*) OVER (ORDER BY w.since_at, w.pod_uid) - 1)::bigint AS ahead_count
  FROM waiting_pods_at(:at) w CROSS JOIN LATERAL amounts_asked(w.request) asked
 WHERE (:namespace IS NULL OR w.namespace = :namespace)
   AND (:reason IS NULL OR w.reason_code = :reason)
