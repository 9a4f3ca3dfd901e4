-- How many more slices of a size fit now, one card each, by the sums on the cards. The scheduler also
-- asks for topology, MIG placements, quota and what the pod selects: `hamictl fits` asks it.
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
), free AS (
    SELECT c.type, c.node, c.memory_mib - c.held_mib AS free_mib,
           c.core_percent - c.held_percent AS free_percent, c.slots - c.held_slots AS free_slots,
           c.healthy AND NOT c.cordoned AS usable
      FROM cards c WHERE (:type IS NULL OR c.type = :type)
), fitting AS (
    SELECT *, CASE WHEN NOT usable THEN 0 ELSE greatest(0, least(
                   free_slots,
                   CASE WHEN :memory > 0 THEN floor(free_mib * 1048576.0 / :memory) ELSE free_slots END,
                   CASE WHEN :cores > 0 THEN floor(free_percent / (100 * :cores) + 1e-9)
                        ELSE free_slots END)) END::bigint AS fits
      FROM free
)
SELECT type, sum(fits)::bigint AS fitting_count, count(*) FILTER (WHERE fits > 0) AS card_count,
       count(DISTINCT node) FILTER (WHERE fits > 0) AS node_count,
       coalesce(sum(free_mib) FILTER (WHERE usable), 0)::bigint * 1048576 AS free_bytes,
       coalesce(max(free_mib) FILTER (WHERE usable), 0)::bigint * 1048576 AS largest_free_bytes,
       coalesce(sum(free_mib) FILTER (WHERE usable AND fits = 0 AND free_mib > 0), 0)::bigint
           * 1048576 AS stranded_bytes
  FROM fitting GROUP BY type
