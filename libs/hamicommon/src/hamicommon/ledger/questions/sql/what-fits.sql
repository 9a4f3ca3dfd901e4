-- How many more slices of a size fit now, one card each, by the sums on the cards. The scheduler also
-- asks for topology, MIG placements, quota and what the pod selects: `hamictl capacity` asks it.
WITH free AS (
    SELECT c.type, c.node, c.memory_mib - c.held_mib AS free_mib,
           c.core_percent - c.held_percent AS free_percent, c.slots - c.held_slots AS free_slots,
           c.healthy AND NOT c.cordoned AS usable
      FROM cards_at(:at) c WHERE (:type IS NULL OR c.type = :type)
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
