"""Emulation of kube-scheduler for local systems without the real one.

`configuration` reads a KubeSchedulerConfiguration, `cluster` holds nodes and filters them, `cycle`
scores and chooses, `queue` holds waiting pods, `extender` speaks to scheduler extenders, `loop`
puts them together. Left out: preemption, volumes, pod affinity, topology spread, host ports,
leader election and extenders over TLS.
"""
