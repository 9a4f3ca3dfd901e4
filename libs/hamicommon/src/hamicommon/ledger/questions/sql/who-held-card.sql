-- Every slice of a card, or of a node, that was held at some moment of a span of time.
SELECT h.namespace, h.pod_name, h.pod_uid, h.container_name AS container, h.role, h.node,
       d.index AS card_index, h.device_uuid, d.type, h.memory_mib * 1048576::bigint AS memory_bytes,
       h.core_percent::float8 / 100 AS core_ratio, h.state, h.reason, h.reserved_at, h.ended_at,
       h.allocation_id::text AS allocation_id, h.attempt AS attempt_count, h.owner_kind,
       coalesce(nullif(h.deployment, ''), h.owner_name) AS owner_name
  FROM allocations_between(:since, :until) h JOIN devices d ON d.uuid = h.device_uuid
 WHERE (:card IS NULL OR h.device_uuid = :card) AND (:node IS NULL OR h.node = :node)
   AND (:namespace IS NULL OR h.namespace = :namespace)
