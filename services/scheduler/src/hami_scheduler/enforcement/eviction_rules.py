"""Whether a pod that is beyond its grant is ended now. Pure.

Only on what is known, only on a fresh report, only at a second look after a grace period of the
scheduler's own, and only so many pods in a minute: a card whose driver misreports, or a node that
lies about its own pods, ends few of them before somebody looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hamicommon.events import LimitFinding

from hami_scheduler.enforcement.periods import LimitPeriod

FRESH_S = 15.0
"""An older report shows how it was; the next one comes within ten seconds."""
SECOND_LOOK_S = 10.0
"""Between the report that began the period and the one that ends the pod."""
MOST_GRACE_S = 30
"""A pod's own termination grace period counts up to here: its author chose it."""
_MIRROR = "kubernetes.io/config.mirror"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPolicy:
    """What the operator set."""

    after_s: float = 30.0
    per_minute: int = 5
    """In the whole cluster."""


def due(
    period: LimitPeriod,
    finding: LimitFinding,
    *,
    received_at: datetime,
    now: datetime,
    policy: EvictionPolicy,
) -> bool:
    """Whether the report gives reason to end the pod."""
    if not (period.state.violates and finding.violating) or period.recorded_at is None:
        return False
    if now - received_at > timedelta(seconds=FRESH_S):
        return False
    lasted_s = (received_at - period.began_at).total_seconds()
    known_s = (now - period.recorded_at).total_seconds()
    return lasted_s >= policy.after_s and known_s >= SECOND_LOOK_S


def why_not(pod: Mapping[str, Any], period: LimitPeriod) -> str:
    """Why the pod that the API server has is left alone, in one sentence; empty: it is not."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    if metadata["uid"] != period.pod_uid:
        return "another pod has its name now"
    if spec.get("nodeName") != period.node:
        return f"it is not on {period.node}"
    if metadata.get("deletionTimestamp"):
        return "it is being deleted already"
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return "it is over"
    if _MIRROR in (metadata.get("annotations") or {}):
        return "it is a static pod: remove its manifest on the node"
    return ""


def grace_s(pod: Mapping[str, Any]) -> int:
    """Seconds that its programs have to end in."""
    wanted = (pod.get("spec") or {}).get("terminationGracePeriodSeconds")
    return MOST_GRACE_S if wanted is None else max(1, min(int(wanted), MOST_GRACE_S))


def with_condition(
    conditions: list[dict[str, Any]], reason: str, message: str, *, now: datetime
) -> list[dict[str, Any]]:
    """The pod's conditions with `DisruptionTarget`, which Kubernetes itself sets for preemption and
    eviction (pod-lifecycle, "Pod disruption conditions")."""
    others = [each for each in conditions if each.get("type") != "DisruptionTarget"]
    at = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    ours = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": at,
    }
    return [*others, ours]
