-- What namespaces used of what they were granted, from sums of whole hours: averages while held.
SELECT n.namespace, sum(n.slice_s)::bigint AS slice_s,
       (sum(n.memory_mib_s) * 1048576 / nullif(sum(n.slice_s), 0))::bigint AS memory_bytes,
       sum(n.core_s) / nullif(sum(n.slice_s), 0) AS core_ratio,
       (sum(n.memory_used_sum_bytes) / nullif(sum(n.sample_count), 0))::bigint AS used_memory_bytes,
       sum(n.core_percent_sum) / nullif(sum(n.sample_count), 0) / 100 AS used_core_ratio,
       coalesce(sum(n.sample_count), 0)::bigint AS sample_count,
       CASE WHEN bool_and(n.idle_s IS NOT NULL OR n.sample_count IS NULL)
            THEN sum(n.idle_s)::bigint END AS idle_s
  FROM namespace_rollups n
 WHERE n.bucket_s = CASE WHEN :until - :since > interval '2 days' THEN 86400 ELSE 3600 END
   AND n.bucket_start >= CASE WHEN :until - :since > interval '2 days'
                              THEN date_trunc('day', :since, 'UTC')
                              ELSE date_trunc('hour', :since, 'UTC') END
   AND n.bucket_start < :until AND (:namespace IS NULL OR n.namespace = :namespace)
 GROUP BY n.namespace
