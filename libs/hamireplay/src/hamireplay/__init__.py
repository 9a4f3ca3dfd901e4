"""Replay traces of pods under a policy, to see how much of the cards is used and who waits.

`trace` is what is replayed, read by `openb` (files) or `history` (a dump of a ledger). `schedule`
makes the order and the times of arrival, `arriving` and `churn` run them. A policy is the product's
`engine` or `published` elsewhere; `policies` has their names. `runs` puts all of it together, and
`results` and `picture` write what was found. docs/simulate.md is for those who use it.
"""
