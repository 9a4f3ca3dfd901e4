-- What the webhook refused, and why.
SELECT r.last_at AS refused_at, r.id AS finding, r.username, r.namespace, r.pod_name, r.owner_kind,
       r.owner_name, r.operation, r.reason AS reason_code, r.message,
       r.repeat_count + r.other_count AS attempt_count
  FROM admission_refusals r
 WHERE r.at >= :since AND r.at < :until AND (:namespace IS NULL OR r.namespace = :namespace)
