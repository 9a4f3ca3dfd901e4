-- Every state that a pod's grants went through, and how long each lasted.
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
SELECT e.sequence AS step_count, e.at AS entered_at, e.previous_state, e.state, e.reason, e.actor,
       a.namespace, a.pod_name, e.pod_uid, a.attempt AS attempt_count, a.node,
       extract(epoch FROM lead(e.at) OVER (ORDER BY e.sequence) - e.at)::float8 AS lasted_s
  FROM pod JOIN allocation_events e ON e.pod_uid = pod.uid
  JOIN allocations a ON a.id = e.allocation_id
 WHERE e.at <= :at
