"""What each kind does to an object before it is written: defaults, and who owns which half.

Pure: bodies in, the same bodies changed. `prepare_create` runs on a new object, `prepare_update`
on a change of an old one; the status belongs to the status subresource and the rest does not.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

from hamicommon.k8s.types import Json

from kubelocal.apiserver.kinds.pod_defaults import default_pod_spec, qos_class
from kubelocal.apiserver.schema.resource import Resource

# Metadata that only the server writes; an update keeps what was.
_SERVER_OWNED = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
    "namespace",
    "name",
    "generateName",
)


def apply_defaults(resource: Resource, body: Json) -> None:
    """Fill in what the kind defaults; idempotent, so it also runs after a patch or a webhook."""
    default = _DEFAULTS.get(resource.kind)
    if default is not None:
        default(body)


def prepare_create(resource: Resource, body: Json) -> None:
    """The state that a new object starts in, whatever the client sent as status."""
    body["metadata"].pop("deletionTimestamp", None)
    body["metadata"].pop("deletionGracePeriodSeconds", None)
    if resource.generation:
        body["metadata"]["generation"] = 1
    if resource.kind in _FIRST_STATUS:
        body["status"] = dict(_FIRST_STATUS[resource.kind])
    elif resource.has_status and resource.kind != "Node":  # a kubelet registers with its status
        body["status"] = {}
    if resource.kind == "Pod":
        body["status"]["qosClass"] = qos_class(body.get("spec", {}))


def prepare_update(resource: Resource, subresource: str, old: Json, new: Json) -> None:
    """Keep in `new` what this path may not change: the other half, and the server's metadata."""
    for name in _SERVER_OWNED:
        if name in old["metadata"]:
            new["metadata"][name] = old["metadata"][name]
        else:
            new["metadata"].pop(name, None)
    if subresource == "status":
        _keep_all_but_status(resource, old, new)
    elif subresource == "ephemeralcontainers":
        _keep_all_but_ephemeral_containers(old, new)
    elif resource.has_status:
        _keep(new, old, "status")
    if resource.generation and new.get("spec") != old.get("spec"):
        new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def _keep_all_but_status(resource: Resource, old: Json, new: Json) -> None:
    for name in {*old, *new} - {"metadata", "status"}:
        _keep(new, old, name)
    if "ownerReferences" in old["metadata"] or "ownerReferences" in new["metadata"]:
        _keep(new["metadata"], old["metadata"], "ownerReferences")
    if resource.group in ("apps", "batch"):
        _keep(new["metadata"], old["metadata"], "labels")


def _keep_all_but_ephemeral_containers(old: Json, new: Json) -> None:
    version = new["metadata"].get("resourceVersion")
    added = (new.get("spec") or {}).get("ephemeralContainers")
    for name in {*old, *new}:
        _keep(new, old, name)
    new["metadata"] = {**old["metadata"], **({"resourceVersion": version} if version else {})}
    new["spec"] = dict(old["spec"])
    if added:
        new["spec"]["ephemeralContainers"] = added
    else:
        new["spec"].pop("ephemeralContainers", None)


def _keep(new: Json, old: Json, name: str) -> None:
    if name in old:
        new[name] = old[name]
    else:
        new.pop(name, None)


def _pod(body: Json) -> None:
    default_pod_spec(body.setdefault("spec", {}))


def _node(body: Json) -> None:
    body.setdefault("spec", {})
    status = body.setdefault("status", {})
    if "capacity" in status:
        status.setdefault("allocatable", dict(status["capacity"]))


def _namespace(body: Json) -> None:
    body.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    body.setdefault("status", {"phase": "Active"})
    if name := body["metadata"].get("name"):
        body["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name


def _workload(body: Json) -> None:
    spec = body.setdefault("spec", {})
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    default_pod_spec(template.setdefault("spec", {}))
    spec.setdefault("revisionHistoryLimit", 10)


def _deployment(body: Json) -> None:
    _workload(body)
    spec = body["spec"]
    spec.setdefault("replicas", 1)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")


def _replica_set(body: Json) -> None:
    _workload(body)
    body["spec"].setdefault("replicas", 1)
    body["spec"].pop("revisionHistoryLimit", None)


def _stateful_set(body: Json) -> None:
    _workload(body)
    body["spec"].setdefault("replicas", 1)
    body["spec"].setdefault("podManagementPolicy", "OrderedReady")


def _job(body: Json) -> None:
    spec = body.setdefault("spec", {})
    template = spec.setdefault("template", {}).setdefault("spec", {})
    default_pod_spec(template)
    spec.setdefault("parallelism", 1)
    spec.setdefault("completions", 1)
    spec.setdefault("backoffLimit", 6)
    # The job controller selects its pods by the uid of the job.
    labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
    if not spec.get("manualSelector") and (uid := body["metadata"].get("uid")):
        labels.setdefault("controller-uid", uid)
        labels.setdefault("job-name", body["metadata"].get("name", ""))
        spec.setdefault("selector", {"matchLabels": {"controller-uid": uid}})


def _secret(body: Json) -> None:
    body.setdefault("type", "Opaque")
    for name, text in body.pop("stringData", {}).items():
        encoded = base64.b64encode(text.encode()).decode()
        body.setdefault("data", {})[name] = encoded


def _service(body: Json) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports", []):
        port.setdefault("protocol", "TCP")
        if "port" in port:
            port.setdefault("targetPort", port["port"])
    body.setdefault("status", {"loadBalancer": {}})


def _quota(body: Json) -> None:
    body.setdefault("spec", {})
    body.setdefault("status", {})


def _priority_class(body: Json) -> None:
    body.setdefault("value", 0)
    body.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _webhooks(body: Json) -> None:
    for hook in body.get("webhooks", []):
        hook.setdefault("failurePolicy", "Fail")
        hook.setdefault("matchPolicy", "Equivalent")
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        hook.setdefault("timeoutSeconds", 10)
        for rule in hook.get("rules", []):
            rule.setdefault("scope", "*")
        if service := hook.get("clientConfig", {}).get("service"):
            service.setdefault("port", 443)


def _mutating_webhooks(body: Json) -> None:
    _webhooks(body)
    for hook in body.get("webhooks", []):
        hook.setdefault("reinvocationPolicy", "Never")


def _claim(body: Json) -> None:
    body.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def _volume(body: Json) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")


def _binding_subjects(body: Json) -> None:
    group = "rbac.authorization.k8s.io"
    body.setdefault("roleRef", {}).setdefault("apiGroup", group)
    for subject in body.get("subjects", []):
        if subject.get("kind") != "ServiceAccount":
            subject.setdefault("apiGroup", group)


_FIRST_STATUS: dict[str, Json] = {
    "Pod": {"phase": "Pending"},
    "Namespace": {"phase": "Active"},
    "PersistentVolume": {"phase": "Pending"},
    "PersistentVolumeClaim": {"phase": "Pending"},
    "Service": {"loadBalancer": {}},
}
_DEFAULTS: dict[str, Callable[[Json], None]] = {
    "Pod": _pod,
    "Node": _node,
    "Namespace": _namespace,
    "Deployment": _deployment,
    "ReplicaSet": _replica_set,
    "StatefulSet": _stateful_set,
    "DaemonSet": _workload,
    "Job": _job,
    "Secret": _secret,
    "Service": _service,
    "ResourceQuota": _quota,
    "PriorityClass": _priority_class,
    "MutatingWebhookConfiguration": _mutating_webhooks,
    "ValidatingWebhookConfiguration": _webhooks,
    "PersistentVolumeClaim": _claim,
    "PersistentVolume": _volume,
    "RoleBinding": _binding_subjects,
    "ClusterRoleBinding": _binding_subjects,
}
