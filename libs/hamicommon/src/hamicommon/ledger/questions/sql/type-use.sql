-- What became of the time of the cards of each type, day by day (UTC): from sums of whole hours.
SELECT day AS began_at, type, (sum(card_hours) * 3600)::bigint AS card_s,
       (sum(held_hours) * 3600)::bigint AS held_s, (sum(idle_hours) * 3600)::bigint AS idle_s,
       (sum(cordoned_hours) * 3600)::bigint AS cordoned_s,
       (sum(unhealthy_hours) * 3600)::bigint AS unhealthy_s,
       (sum(unknown_hours) * 3600)::bigint AS unknown_s,
       sum(held_hours) / nullif(sum(card_hours - unknown_hours), 0) AS held_ratio
  FROM (SELECT date_trunc('day', bucket_start, 'UTC') AS day, type,
               (held_s + idle_s + cordoned_s + unhealthy_s + unknown_s) / 3600 AS card_hours,
               held_s / 3600 AS held_hours, idle_s / 3600 AS idle_hours,
               cordoned_s / 3600 AS cordoned_hours, unhealthy_s / 3600 AS unhealthy_hours,
               unknown_s / 3600 AS unknown_hours
          FROM capacity_rollups
         WHERE bucket_s = 86400 AND bucket_start >= date_trunc('day', :since, 'UTC')
           AND bucket_start < :until AND (:type IS NULL OR type = :type)) days
 GROUP BY day, type
