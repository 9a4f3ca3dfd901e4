-- The pods that were on a card while it was sick.
SELECT p.sick_at, p.device_uuid, p.pod_uid, p.container_name AS container, p.node,
       p.reason AS health_reason, p.well_at, p.namespace, p.pod_name, p.state,
       lower(p.together) AS began_at, upper(p.together) AS ended_at
  FROM v_pods_on_sick_cards p
 WHERE p.sick && tstzrange(:since, :until)
   AND (:card IS NULL OR p.device_uuid = :card) AND (:node IS NULL OR p.node = :node)
