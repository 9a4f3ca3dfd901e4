"""Replay traces of pods under a policy, to see the use of the cards and the waiting pods.

`trace` has the input of a replay, read by `openb` (files) or `history` (a dump of a ledger).
`schedule` computes the order and the times of arrival, `arriving` and `churn` run them. A policy is
of the product's `engine` or `published` elsewhere; `policies` has their names. `runs` combines all
of it, and `results` and `picture` write the results. docs/simulate.md is the documentation for
users.
"""
