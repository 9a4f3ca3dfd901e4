-- Each time a card was sick in a span of time, whether it is back, and how many pods were on it.
SELECT s.sick_at, s.device_uuid, s.node, d.index AS card_index, d.type, s.reason AS health_reason,
       s.well_at, extract(epoch FROM coalesce(s.well_at, now()) - s.sick_at)::float8 AS sick_s,
       (SELECT count(DISTINCT p.pod_uid) FROM v_pods_on_sick_cards p
         WHERE p.device_uuid = s.device_uuid AND p.sick_at = s.sick_at) AS pod_count
  FROM v_sick_cards s JOIN devices d ON d.uuid = s.device_uuid
 WHERE s.sick && tstzrange(:since, :until)
   AND (:card IS NULL OR s.device_uuid = :card) AND (:node IS NULL OR s.node = :node)
