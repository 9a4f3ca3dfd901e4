"""Emulated kube-apiserver: one process and one SQLite file, with the API that kubectl uses.

In order: `__main__` (flags) -> `server` (wiring) -> `http` (requests) -> `verbs` -> `wire`, `kinds`
(bodies, defaults, patches) -> `admission` and `validation` (rules) -> `storage` (objects, watches).
Where it differs from the real server it is wrong: `tests/contract/kubernetes` compare.

Left out: roles and reviews of them (a known token may do everything), enforcement of quotas,
server-side apply, custom resources, `kubectl explain`, logs and exec.
"""
