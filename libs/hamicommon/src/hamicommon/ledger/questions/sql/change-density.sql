-- How many steps of grants there were, in pieces of time: the strip under the time slider.
SELECT date_bin(:step, e.at, :since) AS began_at, count(*) AS change_count,
       count(*) FILTER (WHERE e.previous_state IS NULL) AS reserved_count,
       count(*) FILTER (WHERE e.state IN ('released', 'expired', 'failed', 'released_unconfirmed'))
           AS ended_count
  FROM allocation_events e WHERE e.at >= :since AND e.at < :until
 GROUP BY 1
