-- The cards that were there at a moment, with what is granted of each and what was used last.
WITH held AS (
    SELECT device_uuid, sum(memory_mib) AS memory_mib, sum(core_percent) AS core_percent,
           count(*) AS pods, sum(slots) AS slots
      FROM (SELECT h.allocation_id, h.device_uuid,
                   greatest(count(*) FILTER (WHERE h.role = 'app'),
                            coalesce(max(1 + (hami_beside(h.allocation_id, h.device_uuid, h.container_name)).slots)
                                     FILTER (WHERE h.role = 'init'), 0)) AS slots,
                   greatest(coalesce(sum(h.memory_mib) FILTER (WHERE h.role = 'app'), 0),
                            coalesce(max(h.memory_mib
                                         + (hami_beside(h.allocation_id, h.device_uuid,
                                                        h.container_name)).memory_mib)
                                     FILTER (WHERE h.role = 'init'), 0))
                       AS memory_mib,
                   greatest(coalesce(sum(h.core_percent) FILTER (WHERE h.role = 'app'), 0),
                            coalesce(max(h.core_percent
                                         + (hami_beside(h.allocation_id, h.device_uuid,
                                                        h.container_name)).core_percent)
                                     FILTER (WHERE h.role = 'init'), 0))
                       AS core_percent
              FROM allocations_at(:at) h GROUP BY h.allocation_id, h.device_uuid) pods
     GROUP BY device_uuid
), cards AS (
    SELECT p.*, d.index AS card_index, coalesce(h.memory_mib, 0) AS held_mib,
           coalesce(h.core_percent, 0) AS held_percent, coalesce(h.slots, 0) AS held_slots,
           coalesce(h.pods, 0) AS pods
      FROM device_periods p JOIN devices d ON d.uuid = p.device_uuid
      LEFT JOIN held h ON h.device_uuid = p.device_uuid
     WHERE p.present AND p.began_at <= :at AND coalesce(p.ended_at, 'infinity') > :at
), used AS (
    SELECT DISTINCT ON (device_uuid) device_uuid, memory_used_bytes, core_percent, sampled_at
      FROM usage_samples
     WHERE pod_uid = '' AND sampled_at <= :at AND sampled_at > :at - interval '90 seconds'
     ORDER BY device_uuid, sampled_at DESC
)
SELECT c.node, c.card_index, c.device_uuid, c.vendor, c.type, c.memory_mib * 1048576::bigint
           AS memory_bytes, c.held_mib * 1048576::bigint AS held_memory_bytes,
       u.memory_used_bytes AS used_memory_bytes, c.core_percent::float8 / 100 AS core_ratio,
       c.held_percent::float8 / 100 AS held_core_ratio, u.core_percent / 100 AS used_core_ratio,
       c.slots AS slot_count, c.held_slots AS held_slot_count, c.pods AS pod_count, c.healthy,
       c.health_reason, c.cordoned, c.began_at AS since_at, u.sampled_at
  FROM cards c LEFT JOIN used u ON u.device_uuid = c.device_uuid
 WHERE (:node IS NULL OR c.node = :node) AND (:type IS NULL OR c.type = :type)
   AND (:card IS NULL OR c.device_uuid = :card)
