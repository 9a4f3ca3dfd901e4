-- What a pod used of each card in a span of time, beside what it holds there, from its samples.
WITH newest AS (
    SELECT a.* FROM allocations a
     WHERE a.pod_uid = (SELECT coalesce(:pod_uid, newest_pod_uid(:namespace, :pod, :until)))
       AND a.reserved_at < :until ORDER BY a.attempt DESC LIMIT 1
), used AS (
    SELECT s.device_uuid, s.container, count(*) AS samples, max(s.sampled_at) AS sampled_at,
           (array_agg(s.memory_used_bytes ORDER BY s.sampled_at DESC))[1] AS memory_last,
           max(s.memory_used_bytes) AS memory_most, avg(s.core_percent) AS core_mean,
           max(s.core_percent) AS core_most
      FROM newest a JOIN usage_samples s
        ON s.node = a.node AND s.pod_uid = a.pod_uid AND s.sampled_at >= a.reserved_at
           AND s.sampled_at < coalesce(a.ended_at, 'infinity')
     WHERE s.sampled_at >= :since AND s.sampled_at < :until
     GROUP BY s.device_uuid, s.container
)
SELECT x.container_index, x.position AS card_position_index, a.namespace, a.pod_name, a.pod_uid,
       x.container_name AS container, a.node, d.index AS card_index, x.device_uuid, d.type,
       d.memory_mib * 1048576::bigint AS card_memory_bytes,
       x.memory_mib * 1048576::bigint AS memory_bytes, x.core_percent::float8 / 100 AS core_ratio,
       u.memory_last AS used_memory_bytes, u.memory_most AS used_memory_max_bytes,
       u.core_mean / 100 AS used_core_ratio, u.core_most / 100 AS used_core_max_ratio,
       coalesce(u.samples, 0) AS sample_count, u.sampled_at
  FROM newest a JOIN allocation_devices x ON x.allocation_id = a.id
  JOIN devices d ON d.uuid = x.device_uuid
  LEFT JOIN used u ON u.device_uuid = x.device_uuid AND u.container = x.container_name
