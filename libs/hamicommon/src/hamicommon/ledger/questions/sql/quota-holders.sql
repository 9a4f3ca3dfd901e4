-- Which pods hold what of a namespace's quota, the largest first.
SELECT coalesce(sum(x.memory_mib), 0)::bigint * 1048576 AS memory_bytes, a.pod_uid, a.namespace,
       a.pod_name, a.node, count(*) AS slice_count, sum(x.core_percent)::float8 / 100 AS core_ratio,
       a.reserved_at, coalesce(nullif(a.deployment, ''), a.owner_name) AS owner_name, a.created_by
  FROM allocations a JOIN allocation_devices x ON x.allocation_id = a.id AND x.role = 'app'
 WHERE a.ended_at IS NULL AND a.namespace = :namespace
 GROUP BY a.id, a.pod_uid, a.namespace, a.pod_name, a.node
