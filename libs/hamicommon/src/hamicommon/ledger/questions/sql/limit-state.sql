-- Containers that were not held to their grant, in a span of time; who is not named was enforced, as
-- far as the node's last check goes (figures-as-of).
SELECT p.began_at, p.id AS finding, p.namespace, p.pod_name, p.pod_uid, p.container, p.node,
       p.device_uuid, p.state, p.reason, p.ended_at, p.seen_at,
       p.granted_mib * 1048576::bigint AS memory_bytes,
       p.held_mib * 1048576::bigint AS used_memory_bytes,
       p.peak_mib * 1048576::bigint AS used_memory_max_bytes, p.evicted_at
  FROM limit_periods p
 WHERE p.began_at < :until AND coalesce(p.ended_at, 'infinity') > :since
   AND (:namespace IS NULL OR p.namespace = :namespace) AND (:node IS NULL OR p.node = :node)
   AND (:pod_uid IS NULL OR p.pod_uid = :pod_uid)
