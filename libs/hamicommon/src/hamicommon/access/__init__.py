"""Access by the cluster's RBAC: a Kubernetes token in, its owner or a refusal out."""
