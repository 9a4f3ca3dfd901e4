-- Which pods hold what of a namespace's quota, the largest first.
SELECT coalesce(sum(x.memory_mib), 0)::bigint * 1048576 AS memory_bytes, a.pod_uid, a.namespace,
       a.pod_name, a.node, sum(x.slices)::bigint AS slice_count,
       sum(x.core_percent)::float8 / 100 AS core_ratio, a.reserved_at,
       coalesce(nullif(a.deployment, ''), a.owner_name) AS owner_name, a.created_by
  FROM allocations a CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE d.role = 'app') AS slices,
              greatest(coalesce(sum(d.memory_mib) FILTER (WHERE d.role = 'app'), 0),
                       coalesce(max(d.memory_mib
                                    + (hami_beside(d.allocation_id, d.device_uuid,
                                                   d.container_name)).memory_mib)
                                FILTER (WHERE d.role = 'init'), 0)) AS memory_mib,
              greatest(coalesce(sum(d.core_percent) FILTER (WHERE d.role = 'app'), 0),
                       coalesce(max(d.core_percent
                                    + (hami_beside(d.allocation_id, d.device_uuid,
                                                   d.container_name)).core_percent)
                                FILTER (WHERE d.role = 'init'), 0)) AS core_percent
         FROM allocation_devices d WHERE d.allocation_id = a.id GROUP BY d.device_uuid) x
 WHERE a.ended_at IS NULL AND a.namespace = :namespace
 GROUP BY a.id, a.pod_uid, a.namespace, a.pod_name, a.node
