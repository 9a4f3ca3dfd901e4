"""Several replicas: which of them answers kube-scheduler, and how calls come to that one."""
