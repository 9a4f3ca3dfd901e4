-- Wishes for nodes that were open at some moment of the range.
SELECT w.wanted_at, w.id AS wish, w.type, w.state, cardinality(w.pods) AS pod_count, w.node,
       w.reason, w.asked_at, w.ended_at
  FROM scale_wishes w
 WHERE w.wanted_at < :until AND (w.ended_at IS NULL OR w.ended_at >= :since)
