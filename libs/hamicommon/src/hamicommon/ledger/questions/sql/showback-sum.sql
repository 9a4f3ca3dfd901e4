-- Do the rows of showback add up to the cards that were there? By the cards' own periods, apart from
-- what was granted. The row of type '' is all types.
-- Seconds are rounded down from running sums, so that they add up; `agrees` is about microseconds.
WITH summed AS (
    SELECT coalesce(max(bucket_start) + interval '1 hour', '-infinity') AS until
      FROM showback_rollups WHERE bucket_s = 3600
), hours AS (
    SELECT least(:until, now()) AS till,
           least(date_trunc('hour', :since + interval '1 hour' - interval '1 microsecond', 'UTC'),
                 :until) AS first_hour,
           least(date_trunc('hour', :until, 'UTC'), (SELECT until FROM summed)) AS last_hour
), days AS (
    SELECT *, date_trunc('day', first_hour + interval '1 day' - interval '1 microsecond', 'UTC')
               AS first_day, date_trunc('day', last_hour, 'UTC') AS last_day
      FROM hours
), parts AS (
    SELECT r.* FROM days JOIN showback_rollups r
        ON r.bucket_s = 86400 AND r.bucket_start >= first_day AND r.bucket_start < last_day
    UNION ALL
    SELECT r.* FROM days JOIN showback_rollups r
        ON r.bucket_s = 3600 AND r.bucket_start >= first_hour AND r.bucket_start < last_hour
           AND NOT (r.bucket_start >= first_day AND r.bucket_start < last_day)
    UNION ALL
    SELECT :since, 0, s.* FROM days CROSS JOIN LATERAL
           showback_between(:since, CASE WHEN last_hour > first_hour THEN first_hour
                                         ELSE till END) s
    UNION ALL
    SELECT last_hour, 0, s.* FROM days CROSS JOIN LATERAL showback_between(last_hour, till) s
     WHERE last_hour > first_hour
), kinds AS (
    SELECT type, kind,
           sum(CASE :basis WHEN 'memory' THEN memory_us WHEN 'cores' THEN core_us
                           WHEN 'slots' THEN slot_us
                           ELSE memory_us * :weight::numeric + core_us * (1 - :weight::numeric) END)
               AS us
      FROM parts GROUP BY type, kind
), there AS (
    SELECT p.type, greatest(p.began_at, :since) AS b,
           least(coalesce(p.ended_at, 'infinity'), till) AS e
      FROM device_periods p, hours
     WHERE p.present AND p.began_at < till AND coalesce(p.ended_at, 'infinity') > :since
    UNION ALL
    SELECT p.type, greatest(n.first_seen_at, :since), least(p.began_at, till)
      FROM hours, device_periods p JOIN nodes n ON n.name = p.node
     WHERE NOT p.since_known AND p.began_at > :since AND n.first_seen_at < least(p.began_at, till)
), cards AS (
    SELECT type, sum(extract(epoch FROM e - b) * 1000000) AS us FROM there WHERE e > b GROUP BY type
), sums AS (
    SELECT type, sum(us) AS us, sum(us) FILTER (WHERE kind = 'held') AS held,
           sum(us) FILTER (WHERE kind = 'idle') AS idle,
           sum(us) FILTER (WHERE kind = 'stranded') AS stranded,
           sum(us) FILTER (WHERE kind = 'cordoned') AS cordoned,
           sum(us) FILTER (WHERE kind = 'unhealthy') AS unhealthy,
           sum(us) FILTER (WHERE kind = 'unknown') AS unknown
      FROM kinds GROUP BY type
), rows AS (
    SELECT coalesce(s.type, c.type) AS type, coalesce(c.us, 0) AS card, coalesce(s.us, 0) AS us,
           coalesce(held, 0) AS to_held, coalesce(held, 0) + coalesce(idle, 0) AS to_idle,
           coalesce(s.us, 0) - coalesce(unknown, 0) - coalesce(unhealthy, 0) - coalesce(cordoned, 0)
               AS to_stranded,
           coalesce(s.us, 0) - coalesce(unknown, 0) - coalesce(unhealthy, 0) AS to_cordoned,
           coalesce(s.us, 0) - coalesce(unknown, 0) AS to_unhealthy
      FROM sums s FULL JOIN cards c ON c.type = s.type
), seconds AS (
    SELECT type, div(card, 1000000) AS card_s, div(to_held, 1000000) AS held_s,
           div(to_idle, 1000000) - div(to_held, 1000000) AS idle_s,
           div(to_stranded, 1000000) - div(to_idle, 1000000) AS stranded_s,
           div(to_cordoned, 1000000) - div(to_stranded, 1000000) AS cordoned_s,
           div(to_unhealthy, 1000000) - div(to_cordoned, 1000000) AS unhealthy_s,
           div(us, 1000000) - div(to_unhealthy, 1000000) AS unknown_s, card = us AS agrees
      FROM rows
)
SELECT coalesce(type, '') AS type, coalesce(sum(card_s), 0)::bigint AS card_s,
       coalesce(sum(held_s), 0)::bigint AS held_s, coalesce(sum(idle_s), 0)::bigint AS idle_s,
       coalesce(sum(stranded_s), 0)::bigint AS stranded_s,
       coalesce(sum(cordoned_s), 0)::bigint AS cordoned_s,
       coalesce(sum(unhealthy_s), 0)::bigint AS unhealthy_s,
       coalesce(sum(unknown_s), 0)::bigint AS unknown_s, coalesce(bool_and(agrees), true) AS agrees,
       (SELECT nullif(least(until, now()), '-infinity') FROM summed) AS summed_at
  FROM seconds GROUP BY GROUPING SETS ((type), ())
