-- Who is, or was, on a card without a grant: found by the nodes themselves, and pods that the
-- reconciler found without one.
SELECT p.began_at, 'on a card' AS source, p.id AS finding, p.node, p.device_uuid, p.namespace,
       p.pod_name, p.pod_uid, p.container, p.reason AS detail, p.ended_at,
       p.peak_mib * 1048576::bigint AS used_memory_max_bytes
  FROM limit_periods p
 WHERE p.granted_mib = 0 AND p.began_at < :until AND coalesce(p.ended_at, 'infinity') > :since
UNION ALL
SELECT j.at, 'without a grant', j.id, NULL, NULL, NULL, j.subject, NULL, NULL, j.detail, j.at, NULL
  FROM drift_journal j
 WHERE j."class" = 'pod-without-grant' AND j.at >= :since AND j.at < :until
