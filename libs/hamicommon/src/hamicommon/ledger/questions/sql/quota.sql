-- Limits of namespaces and what is used of them, in each resource's own unit.
SELECT q.namespace, q.resource, q.limit_amount, q.used_amount,
       q.limit_amount - q.used_amount AS left_amount, p.began_at AS since_at
  FROM quotas q LEFT JOIN quota_periods p
    ON (p.namespace, p.resource) = (q.namespace, q.resource) AND p.ended_at IS NULL
 WHERE (:namespace IS NULL OR q.namespace = :namespace)
   AND (q.limit_amount IS NOT NULL OR q.used_amount > 0)
