-- Card time by namespace and what became of the rest, in whole seconds that add up to the cards' own.
SELECT type, kind, namespace, card_s FROM bill_between(:since, :until, :basis, :weight)
