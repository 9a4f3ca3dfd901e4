"""Explain pods without a decision, from the pod object itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hamicommon.errors import InvalidRequest
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

WEBHOOK_IGNORE = ("hami.io/webhook", "ignore")
"""Label of pods and namespaces that the webhook ignores."""

_DEFAULT_SCHEDULER = "default-scheduler"


def why_undecided(pod: Mapping[str, Any], vendors: Vendors, scheduler_name: str) -> str:
    """Explain in one sentence why a pod never came to /filter."""
    spec, metadata = pod.get("spec") or {}, pod.get("metadata") or {}
    resources = ", ".join(vendor.resources.count for vendor in vendors)
    try:
        wants = pod_request(dict(pod), vendors).wants_devices
    except InvalidRequest as exc:
        return f"the pod asks for a card in a way that can't be read: {exc}"
    if not wants and spec.get("resourceClaims"):
        return _by_claims(spec, _scheduler_message(pod))
    if not wants:
        return (
            "the pod asks for no card: no container names one of the resources "
            f"{resources} with an amount in its limits"
        )
    name = spec.get("schedulerName") or _DEFAULT_SCHEDULER
    if spec.get("nodeName") and name != scheduler_name:
        return (
            f"the pod was put on node {spec['nodeName']} by {name}, not by {scheduler_name}, and "
            f"has no slice of a card; leave spec.schedulerName and spec.nodeName empty"
        )
    if name != scheduler_name:
        ignored = (metadata.get("labels") or {}).get(WEBHOOK_IGNORE[0]) == WEBHOOK_IGNORE[1]
        why = f" (its label {WEBHOOK_IGNORE[0]} keeps the webhook away)" if ignored else ""
        return (
            f"the pod waits for scheduler {name}, and only {scheduler_name} gives out cards{why}; "
            f"make it again with spec.schedulerName {scheduler_name}, or without one"
        )
    gates = [gate.get("name", "?") for gate in spec.get("schedulingGates") or ()]
    if gates:
        return (
            f"the pod is held back by its scheduling gates ({', '.join(gates)}); it reaches the "
            "scheduler when the controller that set them removes them"
        )
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return "the pod has ended, and its decisions are no longer stored"
    message = _scheduler_message(pod)
    if message:
        return (
            "kube-scheduler refused every node before it called the extender; its message: "
            f"{message}"
        )
    return (
        f"no decision is recorded yet: kube-scheduler ({scheduler_name}) has not tried the pod; "
        "if this lasts, check that it runs and that its configuration names the extender"
    )


def waits(pod: Mapping[str, Any]) -> bool:
    """Return whether the pod waits to be scheduled."""
    spec, phase = pod.get("spec") or {}, (pod.get("status") or {}).get("phase")
    return not (
        spec.get("nodeName")
        or spec.get("schedulingGates")
        or (pod.get("metadata") or {}).get("deletionTimestamp")
        or phase in ("Succeeded", "Failed")
    )


def why_unallocated(pod: Mapping[str, Any]) -> str:
    """Return kube-scheduler's own message why the pod's claims are not allocated."""
    message = _scheduler_message(pod)
    return f"kube-scheduler: {message}" if message else "kube-scheduler has not answered yet"


def _by_claims(spec: Mapping[str, Any], message: str) -> str:
    names = ", ".join(str(entry.get("name", "?")) for entry in spec["resourceClaims"])
    so_far = (
        f"; node {spec['nodeName']} has not prepared them"
        if spec.get("nodeName")
        else f"; its message: {message}"
        if message
        else ""
    )
    return (
        f"the pod asks by ResourceClaims ({names}), which kube-scheduler allocates first, and the "
        f"ledger grants on the node{so_far}; what each card has free: hamictl get devices"
    )


def _scheduler_message(pod: Mapping[str, Any]) -> str:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""
