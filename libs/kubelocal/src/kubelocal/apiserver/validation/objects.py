"""The rules of one object: its metadata and, where the kind has any, its own."""

from __future__ import annotations

from hamicommon.k8s.quantities import parse_exact
from hamicommon.k8s.types import Json

from kubelocal.apiserver.errors import Cause
from kubelocal.apiserver.schema.resource import Resource
from kubelocal.apiserver.storage.selectors import from_label_selector
from kubelocal.apiserver.validation import names
from kubelocal.apiserver.validation.causes import forbidden, invalid, not_supported, required
from kubelocal.apiserver.validation.ephemeral import validate_ephemeral_update
from kubelocal.apiserver.validation.metadata import validate_metadata
from kubelocal.apiserver.validation.pods import validate_pod_spec, validate_pod_update
from kubelocal.apiserver.validation.resources import is_extended

_WORKLOADS = ("DaemonSet", "Deployment", "ReplicaSet", "StatefulSet", "Job")


def validate_create(resource: Resource, body: Json) -> list[Cause]:
    """The broken rules of a new object, after defaulting and admission."""
    causes = validate_metadata(resource, body["metadata"])
    if resource.kind == "Pod" and body.get("spec", {}).get("ephemeralContainers"):
        causes.append(forbidden("spec.ephemeralContainers", "cannot be set on create"))
    return causes + _spec(resource, body)


def validate_update(resource: Resource, subresource: str, old: Json, new: Json) -> list[Cause]:
    """The broken rules of a change."""
    causes = validate_metadata(resource, new["metadata"])
    if subresource == "ephemeralcontainers":
        return causes + validate_ephemeral_update(old.get("spec", {}), new.get("spec", {}))
    if subresource:
        return causes + (_node(new) if resource.kind == "Node" else [])
    if resource.kind == "Pod":
        return causes + validate_pod_update(old.get("spec", {}), new.get("spec", {}))
    if old.get("immutable") and {**old, "metadata": 0} != {**new, "metadata": 0}:
        causes.append(forbidden("data", "field is immutable when `immutable` is set"))
    return causes + _spec(resource, new)


def _spec(resource: Resource, body: Json) -> list[Cause]:
    if resource.kind == "Pod":
        return validate_pod_spec("spec", body.get("spec", {}))
    if resource.kind in _WORKLOADS:
        return _workload(resource, body.get("spec", {}))
    if resource.kind == "Node":
        return _node(body)
    if resource.kind == "ResourceQuota":
        return _quota(body)
    if resource.kind.endswith("WebhookConfiguration"):
        return _webhooks(body)
    return []


def _workload(resource: Resource, spec: Json) -> list[Cause]:
    template = spec.get("template", {})
    causes: list[Cause] = []
    selector = spec.get("selector")
    if not selector:
        causes.append(required("spec.selector"))
    else:
        labels = template.get("metadata", {}).get("labels", {})
        if not from_label_selector(selector)(labels):
            text = "`selector` does not match template `labels`"
            causes.append(invalid("spec.template.metadata.labels", labels, text))
    if spec.get("replicas", 0) < 0:
        text = "must be greater than or equal to 0"
        causes.append(invalid("spec.replicas", spec["replicas"], text))
    causes += validate_pod_spec("spec.template.spec", template.get("spec", {}))
    policy = template.get("spec", {}).get("restartPolicy")
    if resource.kind == "Job" and policy == "Always":
        supported = ("OnFailure", "Never")
        causes.append(not_supported("spec.template.spec.restartPolicy", policy, supported))
    elif resource.kind != "Job" and policy in ("OnFailure", "Never"):
        causes.append(not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    return causes


def _node(body: Json) -> list[Cause]:
    causes: list[Cause] = []
    for part in ("capacity", "allocatable"):
        for name, text in body.get("status", {}).get(part, {}).items():
            amount = parse_exact(text)
            at = f"status.{part}.{name}"
            if amount < 0:
                causes.append(invalid(at, text, "must be greater than or equal to 0"))
            elif amount.denominator != 1 and is_extended(name):
                causes.append(invalid(at, text, "must be an integer"))
    for index, taint in enumerate(body.get("spec", {}).get("taints", [])):
        at = f"spec.taints[{index}]"
        causes += [
            invalid(f"{at}.key", taint.get("key", ""), text)
            for text in names.qualified(taint.get("key", ""))
        ]
        effects = ("NoSchedule", "PreferNoSchedule", "NoExecute")
        if taint.get("effect") not in effects:
            causes.append(not_supported(f"{at}.effect", taint.get("effect", ""), effects))
    return causes


def _quota(body: Json) -> list[Cause]:
    causes: list[Cause] = []
    for name, text in body.get("spec", {}).get("hard", {}).items():
        at = f"spec.hard[{name}]"
        causes += [invalid(at, name, complaint) for complaint in names.qualified(name)]
        if parse_exact(text) < 0:
            causes.append(invalid(at, text, "must be greater than or equal to 0"))
    return causes


def _webhooks(body: Json) -> list[Cause]:
    causes: list[Cause] = []
    for index, hook in enumerate(body.get("webhooks", [])):
        at = f"webhooks[{index}]"
        if hook.get("name", "").count(".") < 2:
            text = "should be a domain with at least three segments separated by dots"
            causes.append(invalid(f"{at}.name", hook.get("name", ""), text))
        client = hook.get("clientConfig", {})
        if ("url" in client) == ("service" in client):
            text = "exactly one of url or service is required"
            causes.append(required(f"{at}.clientConfig", text))
        if "url" in client and not client["url"].startswith("https://"):
            text = "'https' is the only allowed URL scheme; desired format: https://host[/path]"
            causes.append(invalid(f"{at}.clientConfig.url", client["url"], text))
        if not hook.get("admissionReviewVersions"):
            text = "must specify one of v1, v1beta1"
            causes.append(required(f"{at}.admissionReviewVersions", text))
        if hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            causes.append(required(f"{at}.sideEffects", "must specify one of None, NoneOnDryRun"))
        if not 1 <= hook.get("timeoutSeconds", 10) <= 30:
            text = "the timeout value must be between 1 and 30 seconds"
            causes.append(invalid(f"{at}.timeoutSeconds", hook["timeoutSeconds"], text))
    return causes
