"""Defaults of a pod (or of a pod template), as the API server fills them in; changes in place.

Source: kubernetes `pkg/apis/core/v1/defaults.go`, and the admission plugins that are on by default.
"""

from __future__ import annotations

from typing import Any

from hamicommon.k8s.quantities import parse_exact
from hamicommon.k8s.types import Json

# Kubernetes' DefaultTolerationSeconds admission plugin.
_TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_TOLERATION_S = 300
_FILE_MODE = 0o644
_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}


def default_pod_spec(spec: Json) -> None:
    """Fill in what is left open; idempotent."""
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
    """Five minutes on a node that is not ready, unless the pod asks otherwise."""
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
    """Guaranteed, Burstable or BestEffort, by the cpu and memory of all containers."""
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
        probe[name] = probe.get(name) or value  # 0 is how typed clients leave it open
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
