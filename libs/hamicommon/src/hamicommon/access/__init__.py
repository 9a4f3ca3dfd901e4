"""Check callers by the cluster's RBAC: a Kubernetes token names them."""
