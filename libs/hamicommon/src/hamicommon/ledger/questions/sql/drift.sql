-- Differences between ledger, pods and nodes that the reconciler found.
SELECT j.at AS found_at, j.id AS finding, j."class" AS drift_class, j.subject, j.detail, j.repaired
  FROM drift_journal j
 WHERE j.at >= :since AND j.at < :until AND (:class IS NULL OR j."class" = :class)
