-- The nodes with cards at a moment. Figures of sick and cordoned cards are in the sums.
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
)
SELECT c.node, count(*) AS card_count, count(*) FILTER (WHERE NOT c.healthy) AS sick_card_count,
       count(*) FILTER (WHERE c.cordoned) AS cordoned_card_count,
       count(*) FILTER (WHERE c.held_slots > 0) AS held_card_count,
       sum(c.memory_mib) * 1048576::bigint AS memory_bytes,
       sum(c.held_mib) * 1048576::bigint AS held_memory_bytes,
       sum(c.core_percent)::float8 / 100 AS core_cards_ratio,
       sum(c.held_percent)::float8 / 100 AS held_core_cards_ratio,
       sum(c.slots) AS slot_count, sum(c.held_slots) AS held_slot_count,
       sum(c.pods)::bigint AS slice_count, string_agg(DISTINCT c.type, ', ' ORDER BY c.type) AS type,
       n.source, n.inventory_at AS heard_at, n.node_group
  FROM cards c JOIN nodes n ON n.name = c.node
 WHERE (:node IS NULL OR c.node = :node)
 GROUP BY c.node, n.source, n.inventory_at, n.node_group
