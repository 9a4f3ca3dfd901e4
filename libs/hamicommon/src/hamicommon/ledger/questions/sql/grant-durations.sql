-- How long one use of a card lasts, by type: of grants that ended in the time.
SELECT d.type, count(*) AS grant_count,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY s.lasted_s) AS half_s,
       percentile_cont(0.9) WITHIN GROUP (ORDER BY s.lasted_s) AS most_s,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY s.lasted_s) AS nearly_all_s,
       max(s.lasted_s) AS longest_s
  FROM (SELECT a.id, extract(epoch FROM a.ended_at - a.reserved_at)::float8 AS lasted_s
          FROM allocations a
         WHERE a.reserved_at >= :since AND a.reserved_at < :until AND a.ended_at < :until
           AND (:namespace IS NULL OR a.namespace = :namespace)) s
  JOIN allocation_devices x ON x.allocation_id = s.id AND x.role = 'app'
  JOIN devices d ON d.uuid = x.device_uuid
 WHERE (:type IS NULL OR d.type = :type)
 GROUP BY d.type
