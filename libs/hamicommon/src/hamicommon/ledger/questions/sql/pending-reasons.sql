-- By the reason that the most nodes gave. A refused pod waits until it is placed, gone or ended.
WITH waiting AS (
    SELECT d.* FROM decisions d
     WHERE d.outcome <> 'placed' AND d.at <= :at AND d.at > :at - interval '31 days'
       AND (d.wait_ended_at > :at
            OR (d.wait_ended_at = '-infinity' AND d.last_at > :at - interval '10 minutes'))
       AND NOT EXISTS (SELECT FROM decisions later
                        WHERE later.pod_uid = d.pod_uid AND later.at BETWEEN d.at AND :at
                          AND (later.at, later.id) > (d.at, d.id))
       AND NOT EXISTS (SELECT FROM allocations a
                        WHERE a.pod_uid = d.pod_uid AND a.reserved_at <= :at
                          AND (a.ended_at IS NULL OR a.ended_at > :at))
), since AS (
    SELECT f.pod_uid, min(f.at) AS since_at FROM decisions f
     WHERE f.pod_uid IN (SELECT pod_uid FROM waiting) AND f.outcome <> 'placed'
       AND f.at <= :at AND f.at > :at - interval '31 days'
     GROUP BY f.pod_uid
), reasons AS MATERIALIZED (
    SELECT coalesce((SELECT key FROM jsonb_each_text(w.reason_counts)
                  ORDER BY value::numeric DESC, key LIMIT 1), 'unknown') AS reason_code,
           s.since_at
      FROM waiting w JOIN since s ON s.pod_uid = w.pod_uid
)
SELECT reason_code, count(*) AS pod_count, min(since_at) AS oldest_at,
       count(*) FILTER (WHERE since_at > :at - interval '1 minute') AS under_1m_count,
       count(*) FILTER (WHERE since_at <= :at - interval '1 minute'
                          AND since_at > :at - interval '10 minutes') AS under_10m_count,
       count(*) FILTER (WHERE since_at <= :at - interval '10 minutes'
                          AND since_at > :at - interval '30 minutes') AS under_30m_count,
       count(*) FILTER (WHERE since_at <= :at - interval '30 minutes') AS over_30m_count
  FROM reasons GROUP BY reason_code
