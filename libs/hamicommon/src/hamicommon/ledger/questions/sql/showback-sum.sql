-- Do the rows of showback add up to the cards that were there? By the cards' own periods, apart from
-- what was granted. The row of type '' is all types. `agrees` is about microseconds.
WITH bill AS (
    SELECT type, sum(us) AS us, sum(card_s) FILTER (WHERE kind = 'held') AS held_s,
           sum(card_s) FILTER (WHERE kind = 'idle') AS idle_s,
           sum(card_s) FILTER (WHERE kind = 'stranded') AS stranded_s,
           sum(card_s) FILTER (WHERE kind = 'cordoned') AS cordoned_s,
           sum(card_s) FILTER (WHERE kind = 'unhealthy') AS unhealthy_s,
           sum(card_s) FILTER (WHERE kind = 'unknown') AS unknown_s
      FROM bill_between(:since, :until, :basis, :weight) GROUP BY type
), there AS (
    SELECT p.type, greatest(p.began_at, :since) AS b,
           least(coalesce(p.ended_at, 'infinity'), :until, now()) AS e
      FROM device_periods p WHERE p.present
    UNION ALL
    SELECT p.type, greatest(n.first_seen_at, :since), least(p.began_at, :until, now())
      FROM device_periods p JOIN nodes n ON n.name = p.node WHERE NOT p.since_known
), cards AS (
    SELECT type, sum(extract(epoch FROM e - b) * 1000000) AS us FROM there WHERE e > b GROUP BY type
), types AS (
    SELECT coalesce(c.type, b.type) AS type, div(coalesce(c.us, 0), 1000000) AS card_s, b.held_s,
           b.idle_s, b.stranded_s, b.cordoned_s, b.unhealthy_s, b.unknown_s,
           coalesce(c.us, 0) = coalesce(b.us, 0) AS agrees
      FROM bill b FULL JOIN cards c ON c.type = b.type
)
SELECT coalesce(type, '') AS type, coalesce(sum(card_s), 0)::bigint AS card_s,
       coalesce(sum(held_s), 0)::bigint AS held_s, coalesce(sum(idle_s), 0)::bigint AS idle_s,
       coalesce(sum(stranded_s), 0)::bigint AS stranded_s,
       coalesce(sum(cordoned_s), 0)::bigint AS cordoned_s,
       coalesce(sum(unhealthy_s), 0)::bigint AS unhealthy_s,
       coalesce(sum(unknown_s), 0)::bigint AS unknown_s, coalesce(bool_and(agrees), true) AS agrees,
       (SELECT least(max(bucket_start) + interval '1 hour', now()) FROM showback_rollups
         WHERE bucket_s = 3600 HAVING count(*) > 0) AS summed_at
  FROM types GROUP BY GROUPING SETS ((type), ())
