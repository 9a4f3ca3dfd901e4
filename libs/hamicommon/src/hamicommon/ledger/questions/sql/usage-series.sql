-- Use over time, in sums of 5 minutes (up to 2 days) or hours: of a node's cards, a card, or a pod on a
-- node. Buckets without samples are missing, not 0.
SELECT u.bucket_start AS began_at, u.device_uuid, u.pod_uid, u.container, u.bucket_s, u.namespace,
       u.pod_name, u.node, u.sample_count,
       (u.memory_used_sum_bytes / u.sample_count)::bigint AS used_memory_bytes,
       u.memory_used_max_bytes AS used_memory_max_bytes,
       u.memory_limit_max_bytes AS memory_bytes,
       u.core_percent_sum / u.sample_count / 100 AS used_core_ratio,
       u.core_percent_max / 100 AS used_core_max_ratio
  FROM usage_rollups u
 WHERE u.bucket_s = CASE WHEN :until - :since > interval '2 days' THEN 3600 ELSE 300 END
   AND u.bucket_start >= :since AND u.bucket_start < :until AND u.node = :node
   AND (:card IS NULL OR u.device_uuid = :card)
   AND u.pod_uid = coalesce(:pod_uid, '')
