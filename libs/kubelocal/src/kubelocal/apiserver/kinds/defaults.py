"""Defaults of each kind, and separation of spec and status. Pure: bodies are edited in place.

`prepare_create` runs on a new object, `prepare_update` on a change of an existing one. The status
belongs to the status subresource, all other fields do not. Sources: kubernetes
`pkg/apis/*/v1/defaults.go` and the admission plugins that are enabled by default.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from hamicommon.k8s.quantities import parse_exact
from hamicommon.k8s.types import Json

from kubelocal.apiserver.schema.resources import Resource

# Metadata that only the server writes; an update keeps the old values.
_SERVER_OWNED = (
    *("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
    *("generation", "selfLink", "namespace", "name", "generateName"),
)
# Kubernetes' DefaultTolerationSeconds admission plugin.
_TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATION_S = 300
_FILE_MODE = 0o644
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def apply_defaults(resource: Resource, body: Json) -> None:
    """Fill in the kind's defaults; idempotent, so it also runs after patches and webhooks."""
    default = _DEFAULTS.get(resource.kind)
    if default is not None:
        default(body)


def prepare_create(resource: Resource, body: Json) -> None:
    """Set the initial state of a new object, ignoring the status that the client sent."""
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
    """Restore in `new` what this path may not change: spec or status, and the server's metadata."""
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


def default_pod_spec(spec: Json) -> None:
    """Fill in a pod spec's defaults; idempotent."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    spec.setdefault("enableServiceLinks", True)
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for volume in spec.get("volumes", []):
        _default_volume(volume)
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(field, []):
            _default_container(container, host_network=bool(spec.get("hostNetwork")))


def tolerate_lost_nodes(spec: Json) -> None:
    """Add tolerations of five minutes for nodes that are not ready, unless the pod has others."""
    tolerations = spec.setdefault("tolerations", [])
    for key in _TOLERATED:
        if not any(_covers(each, key) for each in tolerations):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _TOLERATION_S,
                }
            )


def qos_class(spec: Json) -> str:
    """Return Guaranteed, Burstable or BestEffort, by the cpu and memory of all containers."""
    asked = False
    guaranteed = True
    for container in (*spec.get("initContainers", []), *spec.get("containers", [])):
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        for name in ("cpu", "memory"):
            request, limit = (parse_exact(have.get(name, "0")) for have in (requests, limits))
            asked = asked or request > 0 or limit > 0
            guaranteed = guaranteed and limit > 0 and request == limit
    if not asked:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def _covers(toleration: Json, key: str) -> bool:
    return toleration.get("key", "") in ("", key) and toleration.get("effect", "") in (
        "",
        "NoExecute",
    )


def _default_container(container: Json, *, host_network: bool) -> None:
    resources = container.setdefault("resources", {})
    if limits := resources.get("limits"):
        resources["requests"] = limits | resources.get("requests", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", _pull_policy(container.get("image", "")))
    for port in container.get("ports", []):
        port.setdefault("protocol", "TCP")
        if host_network:
            port.setdefault("hostPort", port.get("containerPort"))
    for variable in container.get("env", []):
        source: Any = (variable.get("valueFrom") or {}).get("fieldRef")
        if source:
            source.setdefault("apiVersion", "v1")
    for field in ("livenessProbe", "readinessProbe", "startupProbe"):
        if probe := container.get(field):
            _default_probe(probe)


def _pull_policy(image: str) -> str:
    tag = image.rpartition("/")[2].partition("@")[0].rpartition(":")
    latest = "@" not in image and (not tag[1] or tag[2] == "latest")
    return "Always" if latest else "IfNotPresent"


def _default_probe(probe: Json) -> None:
    for name, value in _PROBE.items():
        probe[name] = probe.get(name) or value  # typed clients send 0 for an unset value
    if get := probe.get("httpGet"):
        get.setdefault("path", "/")
        get.setdefault("scheme", "HTTP")


def _default_volume(volume: Json) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for field in ("secret", "configMap", "downwardAPI", "projected"):
        if (source := volume.get(field)) is not None:
            source.setdefault("defaultMode", _FILE_MODE)
    if (source := volume.get("hostPath")) is not None:
        source.setdefault("type", "")


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
    template = body.setdefault("spec", {}).setdefault("template", {})
    template.setdefault("metadata", {})
    default_pod_spec(template.setdefault("spec", {}))


def _replicas(body: Json) -> None:
    _workload(body)
    body["spec"].setdefault("replicas", 1)


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
        body.setdefault("data", {})[name] = base64.b64encode(text.encode()).decode()


def _service(body: Json) -> None:
    spec = body.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    for port in spec.get("ports", []):
        port.setdefault("protocol", "TCP")


def _priority_class(body: Json) -> None:
    body.setdefault("value", 0)
    body.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _webhooks(body: Json) -> None:
    for hook in body.get("webhooks", []):
        hook.setdefault("failurePolicy", "Fail")
        hook.setdefault("timeoutSeconds", 10)


_FIRST_STATUS: dict[str, Json] = {"Pod": {"phase": "Pending"}, "Namespace": {"phase": "Active"}}
_DEFAULTS: dict[str, Callable[[Json], None]] = {
    "Pod": _pod,
    "Node": _node,
    "Namespace": _namespace,
    "Deployment": _replicas,
    "ReplicaSet": _replicas,
    "StatefulSet": _replicas,
    "DaemonSet": _workload,
    "Job": _job,
    "Secret": _secret,
    "Service": _service,
    "PriorityClass": _priority_class,
    "MutatingWebhookConfiguration": _webhooks,
    "ValidatingWebhookConfiguration": _webhooks,
}
