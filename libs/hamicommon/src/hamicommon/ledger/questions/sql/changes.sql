-- What changed in a span of time: every step of every grant.
SELECT e.at AS changed_at, e.id AS change, e.previous_state, e.state, e.reason, e.actor,
       a.namespace, a.pod_name, e.pod_uid, a.attempt AS attempt_count, a.node,
       e.allocation_id::text AS allocation_id
  FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id
 WHERE e.at >= :since AND e.at < :until
   AND (:node IS NULL OR a.node = :node) AND (:namespace IS NULL OR a.namespace = :namespace)
