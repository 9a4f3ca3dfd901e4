"""An emulated kube-apiserver: one process, one SQLite file, the API that kubectl and we use.

In order: `__main__` (flags) -> `server` (wiring) -> `http` (requests) -> `verbs` -> `wire`, `kinds`
(bodies, defaults, patches) -> `admission` and `validation` (rules) -> `storage` (objects, watches).
Where it differs from the real server it is wrong: `tests/contract/kubernetes` compare.

Left out: roles and reviews of them (a known token may do everything), enforcement of quotas,
server-side apply, custom resources, `kubectl explain`, logs and exec.
"""
