"""The simulated kubelet: one node, its device plugins, and containers as local processes.

Start with `python -m hamictl.kubelet --node NAME --kubeconfig FILE --root DIR`. A pod's way here:
`pod_source` (watch) -> `admission` (serial: `device_allocator`, `predicates`) -> `pod_worker`
-> `container_worker` -> `containers` (the launcher) -> `pod_status` -> `status_reporting`.
"""
