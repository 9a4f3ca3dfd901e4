-- Who asks for far more than they use: the most that nearly all hours (95 of 100) of an owner's pods
-- showed, by what was granted. From hourly sums; owners with fewer hours than wanted are left out.
WITH hours AS (
    SELECT u.pod_uid, u.namespace, u.memory_used_max_bytes, u.memory_limit_max_bytes
      FROM usage_rollups u
     WHERE u.bucket_s = 3600 AND u.bucket_start >= :since AND u.bucket_start < :until
       AND u.pod_uid <> '' AND u.memory_limit_max_bytes > 0
       AND (:namespace IS NULL OR u.namespace = :namespace)
), pods AS (
    SELECT DISTINCT ON (p.pod_uid) p.pod_uid,
           coalesce(nullif(a.deployment, ''), nullif(a.owner_name, ''), '') AS owner_name
      FROM (SELECT DISTINCT pod_uid FROM hours) p JOIN allocations a ON a.pod_uid = p.pod_uid
     ORDER BY p.pod_uid, a.attempt DESC
), owners AS (
    SELECT h.namespace, p.owner_name, count(*) AS hour_count,
           count(DISTINCT h.pod_uid) AS pod_count,
           percentile_disc(0.95) WITHIN GROUP (ORDER BY h.memory_used_max_bytes::float8
                                               / h.memory_limit_max_bytes) AS used_ratio,
           max(h.memory_limit_max_bytes) AS memory_bytes,
           percentile_disc(0.95) WITHIN GROUP (ORDER BY h.memory_used_max_bytes)
               AS used_memory_bytes
      FROM hours h JOIN pods p USING (pod_uid) GROUP BY h.namespace, p.owner_name
)
SELECT coalesce(used_ratio, 1) AS sort_ratio, namespace, owner_name, used_ratio, memory_bytes,
       used_memory_bytes, hour_count, pod_count
  FROM owners WHERE hour_count >= :least
