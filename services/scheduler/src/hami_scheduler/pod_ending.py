"""End a pod that must not continue, so that its controller makes another.

The pod is read again and deleted; a running one gets the condition `DisruptionTarget` with the
reason before. It is not evicted: a disruption budget is the tenant's own object, and would keep the
pod here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import NotFound
from hamicommon.k8s.types import Json
from hamicommon.process.best_effort import log_failure

from hami_scheduler.ports.cluster import PodApi

logger = logging.getLogger(__name__)

MAX_GRACE_S = 30
"""Maximum grace period that a pod gets, as its author chooses the period."""
GONE = "it is gone"
_MIRROR = "kubernetes.io/config.mirror"


class PodEnder:
    """End single pods."""

    def __init__(
        self, pods: PodApi, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._pods = pods
        self._clock = clock

    async def end(self, ref: PodRef, node: str, *, condition: tuple[str, str] | None = None) -> str:
        """End the pod; return why it was not ended, or an empty text.

        `condition`: reason and message of `DisruptionTarget`. Raises: HamiError.
        """
        try:
            pod = await self._pods.get(ref.namespace, ref.name)
            if problem := find_obstacle(pod, ref, node):
                return problem
            if condition is not None:
                await self._show(pod, *condition)
            await self._pods.delete(pod, grace_s=grace_s(pod))
        except NotFound:
            return GONE
        return ""

    async def _show(self, pod: Json, reason: str, message: str) -> None:
        """Write the pod's condition. Raises: NotFound."""
        conditions = (pod.get("status") or {}).get("conditions") or []
        shown = with_condition(conditions, reason, message, now=self._clock())
        # The pod is still ended; its event has the reason.
        with log_failure(logger, "Failed to write the pod's condition", but=NotFound):
            await self._pods.set_conditions(pod, shown)


def find_obstacle(pod: Mapping[str, Any], ref: PodRef, node: str) -> str:
    """Return why the API server's pod must not be ended; empty if it may be."""
    metadata, spec = pod["metadata"], pod.get("spec") or {}
    if metadata["uid"] != ref.uid:
        return "another pod has its name now"
    if spec.get("nodeName") != node:
        return f"it is not on {node}"
    if metadata.get("deletionTimestamp"):
        return "it is being deleted already"
    if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return "it is over"
    if _MIRROR in (metadata.get("annotations") or {}):
        return "it is a static pod: remove its manifest on the node"
    return ""


def grace_s(pod: Mapping[str, Any]) -> int:
    """Return the pod's grace period in seconds, bounded."""
    wanted = (pod.get("spec") or {}).get("terminationGracePeriodSeconds")
    return MAX_GRACE_S if wanted is None else max(1, min(int(wanted), MAX_GRACE_S))


def with_condition(
    conditions: list[dict[str, Any]], reason: str, message: str, *, now: datetime
) -> list[dict[str, Any]]:
    """Return the pod's conditions with `DisruptionTarget`.

    Kubernetes itself sets it for preemption and eviction (pod-lifecycle, "Pod disruption
    conditions").
    """
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
