"""An emulated kube-apiserver: one process, one SQLite file, the API that kubectl and we use.

The story in order: `__main__` (flags) -> `bootstrap` (wiring) -> `routes` (HTTP) -> `registry`
(verbs) -> `admission` and `validation` (rules) -> `store` (the truth) -> `watching` (fan-out).
Where it differs from the real server it is wrong: `tests/contract/kubernetes` compare.
"""
