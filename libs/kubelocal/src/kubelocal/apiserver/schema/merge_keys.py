"""How lists merge in a strategic merge patch: the facts of Kubernetes' published OpenAPI document.

A list that is not named here is replaced as a whole. Keys are (schema definition, JSON field).
"""

from __future__ import annotations

# The key field of each merged list of objects.
MERGE_KEYS: dict[tuple[str, str], str] = {
    ("V1Container", "env"): "name",
    ("V1Container", "ports"): "containerPort",
    ("V1Container", "volumeDevices"): "devicePath",
    ("V1Container", "volumeMounts"): "mountPath",
    ("V1EphemeralContainer", "env"): "name",
    ("V1EphemeralContainer", "ports"): "containerPort",
    ("V1EphemeralContainer", "volumeDevices"): "devicePath",
    ("V1EphemeralContainer", "volumeMounts"): "mountPath",
    ("V1PodSpec", "containers"): "name",
    ("V1PodSpec", "ephemeralContainers"): "name",
    ("V1PodSpec", "hostAliases"): "ip",
    ("V1PodSpec", "imagePullSecrets"): "name",
    ("V1PodSpec", "initContainers"): "name",
    ("V1PodSpec", "resourceClaims"): "name",
    ("V1PodSpec", "schedulingGates"): "name",
    ("V1PodSpec", "topologySpreadConstraints"): "topologyKey",
    ("V1PodSpec", "volumes"): "name",
    ("V1PodStatus", "conditions"): "type",
    ("V1PodStatus", "hostIPs"): "ip",
    ("V1PodStatus", "podIPs"): "ip",
    ("V1PodStatus", "resourceClaimStatuses"): "name",
    ("V1NodeStatus", "addresses"): "type",
    ("V1NodeStatus", "conditions"): "type",
    ("V1NamespaceStatus", "conditions"): "type",
    ("V1PersistentVolumeClaimStatus", "conditions"): "type",
    ("V1ServiceAccount", "secrets"): "name",
    ("V1ServiceSpec", "ports"): "port",
    ("V1ServiceStatus", "conditions"): "type",
    ("V1DaemonSetStatus", "conditions"): "type",
    ("V1DeploymentStatus", "conditions"): "type",
    ("V1ReplicaSetStatus", "conditions"): "type",
    ("V1StatefulSetStatus", "conditions"): "type",
    ("V1JobStatus", "conditions"): "type",
    ("V1ObjectMeta", "ownerReferences"): "uid",
    ("V1MutatingWebhookConfiguration", "webhooks"): "name",
    ("V1MutatingWebhook", "matchConditions"): "name",
    ("V1ValidatingWebhookConfiguration", "webhooks"): "name",
    ("V1ValidatingWebhook", "matchConditions"): "name",
}

# Lists of plain values that merge as sets.
MERGED_SETS: frozenset[tuple[str, str]] = frozenset(
    {("V1ObjectMeta", "finalizers"), ("V1NodeSpec", "podCIDRs")}
)

# Objects of which a patch may keep, with $retainKeys, the named fields only.
RETAINED_KEYS: frozenset[tuple[str, str]] = frozenset(
    {("V1PodSpec", "volumes"), ("V1DeploymentSpec", "strategy")}
)
