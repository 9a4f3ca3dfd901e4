-- The nodes with cards at a moment. Figures of sick and cordoned cards are in the sums.
SELECT c.node, count(*) AS card_count, count(*) FILTER (WHERE NOT c.healthy) AS sick_card_count,
       count(*) FILTER (WHERE c.cordoned) AS cordoned_card_count,
       count(*) FILTER (WHERE c.held_slots > 0) AS held_card_count,
       sum(c.memory_mib) * 1048576 AS memory_bytes,
       sum(c.held_mib) * 1048576 AS held_memory_bytes,
       sum(c.core_percent)::float8 / 100 AS core_cards_ratio,
       sum(c.held_percent)::float8 / 100 AS held_core_cards_ratio,
       sum(c.slots) AS slot_count, sum(c.held_slots) AS held_slot_count,
       sum(c.pods)::bigint AS slice_count, string_agg(DISTINCT c.type, ', ' ORDER BY c.type) AS type,
       bool_and(c.cordoned) AS cordoned, n.source, n.inventory_at AS heard_at, n.node_group
  FROM cards_at(:at) c JOIN nodes n ON n.name = c.node
 WHERE (:node IS NULL OR c.node = :node)
 GROUP BY c.node, n.source, n.inventory_at, n.node_group
