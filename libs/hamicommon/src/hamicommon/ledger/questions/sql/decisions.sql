-- What was decided in a span of time. Of placed pods only those are kept that took long or were refused before.
SELECT d.at AS decided_at, d.id AS decision, d.last_at, d.namespace, d.pod_name, d.pod_uid,
       d.outcome, d.node, d.summary, d.reason_counts, d.candidates AS candidate_count,
       d.repeat_count AS attempt_count, (d.phase_ms->>'total')::float8 / 1000 AS decision_s,
       nullif(d.trace_id, '') AS trace_id
  FROM decisions d
 WHERE d.at >= :since AND d.at < :until AND d.pod_name <> ''
   AND (:outcome IS NULL OR d.outcome = :outcome)
   AND (:namespace IS NULL OR d.namespace = :namespace)
