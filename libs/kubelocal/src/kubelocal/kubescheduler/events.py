"""Report scheduling attempts to users: events, and the condition PodScheduled.

Both are written behind the loop's back from bounded queues: a slow API server costs messages, never
placements.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime

from hamicommon.errors import HamiError, NotFound
from hamicommon.k8s.client import KubeApi, PatchType
from hamicommon.k8s.types import Json

from kubelocal.events import MAX_WAITING, EventRecorder

logger = logging.getLogger(__name__)


def fit_message(reasons: Mapping[str, tuple[str, ...]], total: int) -> str:
    """Return kube-scheduler's message: how many nodes were refused for each reason."""
    counts: dict[str, int] = {}
    for node_reasons in reasons.values():
        for reason in node_reasons:
            counts[reason] = counts.get(reason, 0) + 1
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{total} nodes are available: {listed}."


class Reporter:
    """Write events and conditions in the background."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._events = EventRecorder(
            api, lambda pod: {"component": pod["spec"].get("schedulerName") or "default-scheduler"}
        )
        self._conditions: asyncio.Queue[tuple[Json, str, str]] = asyncio.Queue(MAX_WAITING)

    def report_scheduled(self, pod: Json, node: str) -> None:
        """Report that the pod is bound."""
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        self._events.record(pod, "Normal", "Scheduled", f"Successfully assigned {name} to {node}")

    def report_failure(self, pod: Json, reason: str, message: str) -> None:
        """Report a failed attempt; `reason` is Unschedulable or SchedulerError."""
        self._events.record(pod, "Warning", "FailedScheduling", message)
        if not self._conditions.full():
            self._conditions.put_nowait((pod, reason, message))

    async def run(self) -> None:
        """Write events until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._events.run())
            while True:
                pod, reason, message = await self._conditions.get()
                try:
                    await self._condition(pod, reason, message)
                except NotFound:
                    continue  # the pod is gone
                except HamiError as exc:
                    logger.warning("Failed to write a condition", extra={"error": str(exc)})

    async def _condition(self, pod: Json, reason: str, message: str) -> None:
        metadata = pod["metadata"]
        old = scheduled_condition(pod)
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": old.get("lastTransitionTime")
            if old.get("status") == "False"
            else datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        if {**condition, "lastTransitionTime": old.get("lastTransitionTime")} == {
            **old,
            "lastProbeTime": old.get("lastProbeTime"),
        }:
            return
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        # The uid makes the server refuse if another pod has taken the name.
        change = {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": [condition]}}
        await self._api.patch(path, change, PatchType.STRATEGIC)


def scheduled_condition(pod: Json) -> Json:
    """Return the pod's condition PodScheduled, or {}."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled":
            return dict(condition)
    return {}
