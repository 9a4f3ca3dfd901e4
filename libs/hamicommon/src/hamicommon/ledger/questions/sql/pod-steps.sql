-- Every state that a pod's grants went through, and how long each lasted.
SELECT e.sequence AS step_count, e.at AS entered_at, e.previous_state, e.state, e.reason, e.actor,
       a.namespace, a.pod_name, e.pod_uid, a.attempt AS attempt_count, a.node,
       extract(epoch FROM lead(e.at) OVER (ORDER BY e.sequence) - e.at)::float8 AS lasted_s
  FROM allocation_events e JOIN allocations a ON a.id = e.allocation_id
 WHERE e.pod_uid = (SELECT coalesce(:pod_uid, newest_pod_uid(:namespace, :pod, :at))) AND e.at <= :at
