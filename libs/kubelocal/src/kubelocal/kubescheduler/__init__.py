"""A scheduling loop that behaves as kube-scheduler does, for local systems without the real one.

`configuration` reads a KubeSchedulerConfiguration, `cluster` and `pods` hold parsed nodes and pods,
`filters`, `scoring` and `queue` decide (pure), `extender` speaks to scheduler extenders, `loop`
puts them together. Left out: preemption, volumes, pod affinity, topology spread and host ports.
"""
