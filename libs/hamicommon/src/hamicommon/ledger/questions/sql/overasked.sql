-- Who asks for far more than they use: the most that nearly all hours (95 of 100) of an owner's pods
-- showed, by what was granted. From hourly sums; owners with fewer hours than wanted are left out.
WITH hours AS (
    SELECT u.namespace, u.pod_uid, coalesce(u.owner_name, (
               SELECT coalesce(nullif(a.deployment, ''), a.owner_name, '') FROM allocations a
                WHERE a.pod_uid = u.pod_uid ORDER BY a.attempt DESC LIMIT 1)) AS owner_name,
           u.memory_used_max_bytes, u.memory_limit_max_bytes
      FROM usage_rollups u
     WHERE u.bucket_s = 3600 AND u.bucket_start >= :since AND u.bucket_start < :until
       AND u.pod_uid <> '' AND u.memory_limit_max_bytes > 0
       AND (:namespace IS NULL OR u.namespace = :namespace)
), pods AS (
    SELECT namespace, owner_name, count(*) AS pod_count
      FROM (SELECT namespace, owner_name, pod_uid FROM hours GROUP BY 1, 2, 3) p GROUP BY 1, 2
), owners AS (
    SELECT namespace, owner_name, count(*) AS hour_count,
           percentile_disc(0.95) WITHIN GROUP (ORDER BY memory_used_max_bytes::float8
                                               / memory_limit_max_bytes) AS used_ratio,
           max(memory_limit_max_bytes) AS memory_bytes,
           percentile_disc(0.95) WITHIN GROUP (ORDER BY memory_used_max_bytes)
               AS used_memory_bytes
      FROM hours WHERE owner_name IS NOT NULL GROUP BY namespace, owner_name
)
SELECT coalesce(o.used_ratio, 1) AS sort_ratio, o.namespace, o.owner_name, o.used_ratio,
       o.memory_bytes, o.used_memory_bytes, o.hour_count, p.pod_count
  FROM owners o JOIN pods p USING (namespace, owner_name) WHERE o.hour_count >= :least
