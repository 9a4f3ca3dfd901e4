-- By the reason that the most nodes gave. A refused pod waits until it is placed, gone or ended.
SELECT reason_code, count(*) AS pod_count, min(since_at) AS oldest_at,
       count(*) FILTER (WHERE since_at > :at - interval '1 minute') AS under_1m_count,
       count(*) FILTER (WHERE since_at <= :at - interval '1 minute'
                          AND since_at > :at - interval '10 minutes') AS under_10m_count,
       count(*) FILTER (WHERE since_at <= :at - interval '10 minutes'
                          AND since_at > :at - interval '30 minutes') AS under_30m_count,
       count(*) FILTER (WHERE since_at <= :at - interval '30 minutes') AS over_30m_count
  FROM waiting_pods_at(:at) GROUP BY reason_code
