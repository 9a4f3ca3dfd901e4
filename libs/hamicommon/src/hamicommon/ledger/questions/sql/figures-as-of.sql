-- How old each source of figures is: what is late is shown as it was, what never came is unknown.
SELECT source, last_at, expected_s, coalesce(last_at < now() - expected_s * interval '1 second', true)
           AS stale,
       extract(epoch FROM now() - last_at)::float8 AS age_s, known_count, late_count
  FROM (
    SELECT 'agents' AS source, max(inventory_at) AS last_at, 75::bigint AS expected_s,
           count(*) AS known_count,
           count(*) FILTER (WHERE inventory_at < now() - interval '75 seconds'
                               OR inventory_at IS NULL) AS late_count
      FROM nodes WHERE source = 'agent' AND gone_at IS NULL
    UNION ALL
    SELECT 'samples', max(sampled_at), 120, NULL, NULL FROM usage_samples
     WHERE sampled_at > now() - interval '3 days'
    UNION ALL
    SELECT 'sums of usage', max(bucket_start) + interval '5 minutes', 900, NULL, NULL
      FROM usage_rollups WHERE bucket_s = 300 AND bucket_start > now() - interval '3 days'
    UNION ALL
    SELECT 'sums of namespaces', max(bucket_start) + interval '1 hour', 5400, NULL, NULL
      FROM namespace_rollups WHERE bucket_s = 3600
    UNION ALL
    SELECT 'sums of capacity', max(bucket_start) + interval '1 hour', 5400, NULL, NULL
      FROM capacity_rollups WHERE bucket_s = 3600
    UNION ALL
    SELECT 'sums of showback', max(bucket_start) + interval '1 hour', 5400, NULL, NULL
      FROM showback_rollups WHERE bucket_s = 3600
    UNION ALL
    SELECT 'limit checks', max(checked_at), 180, count(*),
           count(*) FILTER (WHERE checked_at < now() - interval '3 minutes') FROM limit_checks
    UNION ALL
    SELECT 'announcements', coalesce(min(at), now()), 60, count(*), NULL
      FROM (SELECT at FROM allocation_events WHERE published_at IS NULL
            UNION ALL SELECT created_at FROM outbox WHERE published_at IS NULL) waiting) sources
