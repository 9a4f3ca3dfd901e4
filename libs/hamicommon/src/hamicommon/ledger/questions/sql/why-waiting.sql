-- The stored decisions of one pod, newest first: what was answered then, not what would be now.
SELECT d.at AS decided_at, d.id AS decision, d.last_at, d.pod_uid, d.namespace, d.pod_name,
       d.outcome, d.node, d.summary, d.message, d.reason_counts, d.candidates AS candidate_count,
       d.repeat_count AS attempt_count, asked.card_count, asked.memory_bytes, asked.memory_ratio,
       asked.core_ratio, (d.phase_ms->>'total')::float8 / 1000 AS decision_s,
       nullif(d.trace_id, '') AS trace_id
  FROM decisions d CROSS JOIN LATERAL amounts_asked(d.request) asked
 WHERE d.pod_uid = (SELECT coalesce(:pod_uid, newest_pod_uid(:namespace, :pod, :at)))
   AND d.at <= :at AND d.at > :at - interval '31 days'
