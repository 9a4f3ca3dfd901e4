-- The cards that were there at a moment, with what is granted of each and what was used last.
WITH used AS (
    SELECT DISTINCT ON (device_uuid) device_uuid, memory_used_bytes, core_percent, sampled_at
      FROM usage_samples
     WHERE pod_uid = '' AND sampled_at <= :at AND sampled_at > :at - interval '90 seconds'
     ORDER BY device_uuid, sampled_at DESC
)
SELECT c.node, c.card_index, c.device_uuid, c.vendor, c.type, c.memory_mib * 1048576 AS memory_bytes,
       c.held_mib * 1048576 AS held_memory_bytes, u.memory_used_bytes AS used_memory_bytes,
       c.core_percent::float8 / 100 AS core_ratio, c.held_percent::float8 / 100 AS held_core_ratio,
       u.core_percent / 100 AS used_core_ratio, c.slots AS slot_count,
       c.held_slots AS held_slot_count, c.pods AS pod_count, c.healthy, c.health_reason, c.cordoned,
       c.began_at AS since_at, u.sampled_at
  FROM cards_at(:at) c LEFT JOIN used u ON u.device_uuid = c.device_uuid
 WHERE (:node IS NULL OR c.node = :node) AND (:type IS NULL OR c.type = :type)
   AND (:card IS NULL OR c.device_uuid = :card)
