-- Card by card, why a slice of a size does not fit there now; the nearest first.
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
), checked AS (
    SELECT c.*, greatest(0, :memory - (c.memory_mib - c.held_mib)::bigint * 1048576)
               AS short_memory_bytes,
           greatest(0, :cores - (c.core_percent - c.held_percent)::float8 / 100) AS short_core_ratio
      FROM cards c
     WHERE (:node IS NULL OR c.node = :node) AND (:type IS NULL OR c.type = :type)
)
SELECT cardinality(refusals)::bigint AS refusal_count, short_memory_bytes, device_uuid, node,
       card_index, type, refusals, (memory_mib - held_mib)::bigint * 1048576 AS free_bytes,
       (core_percent - held_percent)::float8 / 100 AS free_core_ratio,
       slots - held_slots AS free_slot_count, short_core_ratio, pods AS pod_count, health_reason
  FROM checked CROSS JOIN LATERAL (
       SELECT array_remove(ARRAY[CASE WHEN NOT healthy THEN 'unhealthy' END,
                                 CASE WHEN cordoned THEN 'cordoned' END,
                                 CASE WHEN short_memory_bytes > 0 THEN 'memory' END,
                                 CASE WHEN short_core_ratio > 1e-9 THEN 'cores' END,
                                 CASE WHEN held_slots >= slots THEN 'slots' END], NULL) AS refusals) r
