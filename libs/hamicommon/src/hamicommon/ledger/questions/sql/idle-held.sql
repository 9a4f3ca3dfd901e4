-- Who held a share and did nothing with it, by owner: the time of slices in hours in which no sample
-- showed a core at work. From hourly sums, so the running hour is not in it. Memory may be held all
-- the same. A pod that nobody granted anything is not in it.
WITH hours AS (
    SELECT u.namespace, u.pod_uid, coalesce(nullif(a.deployment, ''), nullif(a.owner_name, ''), '')
               AS owner_name, u.core_percent_max AS core, u.memory_limit_max_bytes AS memory,
           extract(epoch FROM least(coalesce(a.ended_at, now()), u.bucket_start + interval '1 hour')
                              - greatest(a.reserved_at, u.bucket_start)) AS seconds
      FROM usage_rollups u JOIN allocations a
        ON a.pod_uid = u.pod_uid AND a.reserved_at < u.bucket_start + interval '1 hour'
           AND coalesce(a.ended_at, 'infinity') > u.bucket_start
     WHERE u.bucket_s = 3600 AND u.bucket_start >= :since AND u.bucket_start < :until
       AND u.pod_uid <> '' AND (:namespace IS NULL OR u.namespace = :namespace)
), owners AS (
    SELECT namespace, owner_name, count(DISTINCT pod_uid) FILTER (WHERE core = 0) AS pod_count,
           sum(seconds) FILTER (WHERE core = 0) AS idle_s, sum(seconds) AS sampled_s,
           coalesce(sum(seconds) FILTER (WHERE core IS NULL), 0) AS unknown_s,
           sum(seconds * memory) FILTER (WHERE core = 0) AS idle_byte_s
      FROM hours GROUP BY namespace, owner_name
)
SELECT coalesce(idle_byte_s / 3600 / 1073741824, 0)::bigint AS idle_gib_hour_count, namespace,
       owner_name, pod_count, idle_s::bigint AS idle_s, sampled_s::bigint AS sampled_s,
       unknown_s::bigint AS unknown_s,
       (idle_s / nullif(sampled_s - unknown_s, 0))::float8 AS idle_ratio
  FROM owners WHERE idle_s > 0
