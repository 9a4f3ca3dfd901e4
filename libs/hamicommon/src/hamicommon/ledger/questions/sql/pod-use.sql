-- What each pod that holds cards used last, beside what it holds: sums over its cards. From samples
-- of 90 seconds; use is known where each slice of the pod's app containers has a sample.
WITH slices AS (
    SELECT h.* FROM allocations_at(:at) h
     WHERE (:node IS NULL OR h.node = :node) AND (:namespace IS NULL OR h.namespace = :namespace)
), held AS (
    SELECT allocation_id, count(*) AS cards, sum(memory_mib) AS memory_mib,
           sum(core_percent) AS core_percent
      FROM (SELECT s.allocation_id, s.device_uuid,
                   greatest(coalesce(sum(s.memory_mib) FILTER (WHERE s.role = 'app'), 0),
                            coalesce(max(s.memory_mib
                                         + (hami_beside(s.allocation_id, s.device_uuid,
                                                        s.container_name)).memory_mib)
                                     FILTER (WHERE s.role = 'init'), 0))
                       AS memory_mib,
                   greatest(coalesce(sum(s.core_percent) FILTER (WHERE s.role = 'app'), 0),
                            coalesce(max(s.core_percent
                                         + (hami_beside(s.allocation_id, s.device_uuid,
                                                        s.container_name)).core_percent)
                                     FILTER (WHERE s.role = 'init'), 0))
                       AS core_percent
              FROM slices s GROUP BY s.allocation_id, s.device_uuid) cards
     GROUP BY allocation_id
), samples AS (
    SELECT DISTINCT ON (pod_uid, device_uuid, container) pod_uid, device_uuid, container,
           memory_used_bytes, core_percent, sampled_at
      FROM usage_samples
     WHERE pod_uid <> '' AND sampled_at <= :at AND sampled_at > :at - interval '90 seconds'
       AND (:node IS NULL OR node = :node)
     ORDER BY pod_uid, device_uuid, container, sampled_at DESC
), used AS (
    SELECT s.allocation_id, bool_and(u.memory_used_bytes IS NOT NULL) AS memory_known,
           sum(u.memory_used_bytes) AS memory_bytes, bool_and(u.core_percent IS NOT NULL)
               AS core_known, sum(u.core_percent) AS core_percent, min(u.sampled_at) AS sampled_at
      FROM (SELECT DISTINCT allocation_id, pod_uid, device_uuid, container_name FROM slices
             WHERE role = 'app') s
      LEFT JOIN samples u ON u.pod_uid = s.pod_uid AND u.device_uuid = s.device_uuid
                         AND u.container = s.container_name
     GROUP BY s.allocation_id
)
SELECT p.namespace, p.pod_name, p.pod_uid, p.allocation_id::text AS allocation_id, p.node, p.state,
       h.cards AS card_count, (h.memory_mib * 1048576)::bigint AS memory_bytes,
       CASE WHEN u.memory_known THEN u.memory_bytes::bigint END AS used_memory_bytes,
       h.core_percent::float8 / 100 AS core_ratio,
       CASE WHEN u.core_known THEN u.core_percent::float8 / 100 END AS used_core_ratio, u.sampled_at
  FROM (SELECT DISTINCT allocation_id, namespace, pod_name, pod_uid, node, state FROM slices) p
  JOIN held h ON h.allocation_id = p.allocation_id
  LEFT JOIN used u ON u.allocation_id = p.allocation_id
