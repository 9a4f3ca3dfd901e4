-- Who called what that changes something.
SELECT c.at AS called_at, c.id AS call, c.username, c.source, c.verb, c.object, c.outcome,
       c.message, c.repeat_count AS attempt_count, c.ended_at
  FROM operator_calls c
 WHERE c.at >= :since AND c.at < :until AND (:verb IS NULL OR c.verb = :verb)
