-- How long one use of a card lasts, by type: of grants that ended in the time.
WITH ended AS (
    SELECT a.id, extract(epoch FROM a.ended_at - a.reserved_at)::float8 AS lasted_s
      FROM allocations a
     WHERE a.reserved_at >= :since AND a.reserved_at < :until AND a.ended_at < :until
       AND (:namespace IS NULL OR a.namespace = :namespace)
), types AS (
    SELECT d.type, count(*) AS grant_count, max(e.lasted_s) AS longest_s,
           percentile_cont(ARRAY[0.5, 0.9, 0.99]) WITHIN GROUP (ORDER BY e.lasted_s) AS parts
      FROM ended e JOIN allocation_devices x ON x.allocation_id = e.id AND x.role = 'app'
      JOIN devices d ON d.uuid = x.device_uuid
     WHERE (:type IS NULL OR d.type = :type)
     GROUP BY d.type
)
SELECT type, grant_count, parts[1] AS half_s, parts[2] AS most_s, parts[3] AS nearly_all_s,
       longest_s
  FROM types
