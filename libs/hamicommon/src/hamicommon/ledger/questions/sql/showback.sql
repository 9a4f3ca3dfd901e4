-- Card time by namespace and what became of the rest, in whole seconds that add up to the cards' own.
-- Each row is rounded down from the running sum, so no second is lost between rows.
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
), cut AS (
    SELECT kind, namespace, type,
           sum(CASE :basis WHEN 'memory' THEN memory_us WHEN 'cores' THEN core_us
                           WHEN 'slots' THEN slot_us
                           ELSE memory_us * :weight::numeric + core_us * (1 - :weight::numeric) END)
               AS us
      FROM parts GROUP BY kind, namespace, type
), added AS (
    SELECT kind, namespace, type, us, sum(us) OVER running AS us_sum
      FROM cut WINDOW running AS (PARTITION BY type ORDER BY kind, namespace ROWS UNBOUNDED PRECEDING)
)
SELECT type, kind, namespace,
       (div(us_sum, 1000000) - div(us_sum - us, 1000000))::bigint AS card_s
  FROM added WHERE us > 0
