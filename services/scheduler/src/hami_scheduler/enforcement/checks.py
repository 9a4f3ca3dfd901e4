"""Record containers that exceed their limits, and evict their pods if configured.

Input: the findings of nodes (`hami.limits.v1.<node>`). A node reports on its own pods: a finding
about a pod that the API server does not have on that node is ignored, from any node. `changes` is
pure: it computes which periods begin, continue and end with a node's check. A violation that begins
is a line of drift and a Warning event; with `HAMI_SCHEDULER_ENFORCEMENT=evict` the pod is ended if
a fresh finding confirms it. Begun evictions are in the ledger, so another replica continues after
one that dies, and two replicas do not end pods twice as fast.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hamicommon.bus.client import Message
from hamicommon.bus.reader import read_of_node
from hamicommon.clipping import clip
from hamicommon.domain.ids import PodUid
from hamicommon.errors import HamiError
from hamicommon.events import LimitCheck, LimitFinding
from hamicommon.k8s.types import JsonMapping

from hami_scheduler.enforcement.periods import (
    REASONS,
    EvictionPolicy,
    LimitPeriod,
    PeriodChanges,
    drift_class,
    due,
)
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_ending import PodEnder
from hami_scheduler.pod_events import Announcer, LogLimit

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.housekeeping import PostgresLimits


logger = logging.getLogger(__name__)

EVICTED = "LimitEviction"
RETRY_AFTER_S = 60.0
"""Pause before an eviction is tried again."""
MAX_PROBLEM_LENGTH = 512


SILENT_S = 600.0
"""Time without confirmation after which a violation no longer counts as continuing."""
CLOSE_INTERVAL_S = 60.0


@dataclass(eq=False, kw_only=True)
class LimitChecks:
    """Consumer of `hami.limits.v1.*`.

    `pod_named`: the watch's, by namespace and name. `policy`: None: no pod is ended.
    """

    history: PostgresLimits
    pod_named: Callable[[str, str], JsonMapping | None]
    announcer: Announcer
    instruments: SchedulerInstruments
    log_limit: LogLimit
    ender: PodEnder
    policy: EvictionPolicy | None
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def handle(self, message: Message) -> None:
        """Handle one check. Raises: InvalidRequest, Conflict, Unavailable."""
        check = read_of_node(LimitCheck, message.subject, message.data, "limit check")
        findings = [finding for finding in check.findings if self._is_there(check.node, finding)]
        if len(findings) < len(check.findings):
            logger.warning(
                "Ignoring findings about pods that are not on the node",
                extra={"node": check.node, "count": len(check.findings) - len(findings)},
            )
        changed = await self.history.record(check, findings, received_at=message.received_at)
        if changed is None:
            return
        self._show(changed)
        if self.policy is None:
            return
        by_key = {(f.pod_uid, f.container, f.uuid): f for f in findings}
        received_at = message.received_at
        for period in changed.going_on:
            if due(
                period,
                by_key[period.key],
                received_at=received_at,
                now=self.clock(),
                policy=self.policy,
            ):
                with self.instruments.bulkhead.item("evict", period.pod_uid):
                    await self._evict(period, self.policy)

    async def close_silent(self) -> None:
        """End periods of nodes that no longer report. Raises: Unavailable, Conflict."""
        await self.history.close_silent(silent_s=SILENT_S)

    def _is_there(self, node: str, finding: LimitFinding) -> bool:
        pod = self.pod_named(finding.namespace, finding.pod)
        return (
            pod is not None
            and pod["metadata"]["uid"] == finding.pod_uid
            and (pod.get("spec") or {}).get("nodeName") == node
        )

    def _show(self, changed: PeriodChanges) -> None:
        for period in changed.begun:
            reason = REASONS.get(period.state)
            if reason is None:
                continue
            self.instruments.drift.labels(drift_class(period.state)).inc()
            if self.log_limit.take(PodUid(period.pod_uid), period.sentence) is None:
                continue
            logger.warning(
                "Found a container that is not held to its limits",
                extra={"pod_uid": period.pod_uid, "state": str(period.state), "node": period.node},
            )
            self.announcer.announce(period.pod, reason, period.sentence)

    async def _evict(self, period: LimitPeriod, policy: EvictionPolicy) -> None:
        """Evict the period's pod, within the rate limit. Raises: Unavailable, Conflict (ledger)."""
        claimed = await self.history.claim_eviction(
            period.id, per_minute=policy.per_minute, again_after_s=RETRY_AFTER_S
        )
        if not claimed:
            return
        message = f"evicted because of {period.sentence}"
        try:
            condition = (REASONS[period.state], message)
            problem = await self.ender.end(period.pod, period.node, condition=condition)
        except HamiError as exc:
            problem = clip(str(exc), MAX_PROBLEM_LENGTH)
        result = "failed" if problem else "ended"
        self.instruments.limit_evictions.labels(result).inc()
        if problem:
            logger.warning(
                "Failed to evict a pod that exceeded or bypassed its limits; trying again later",
                extra={"pod_uid": period.pod_uid, "error": problem},
            )
        else:
            self.announcer.announce(period.pod, EVICTED, message)
            logger.warning(
                "Evicted a pod that exceeded or bypassed its limits",
                extra={"pod_uid": period.pod_uid},
            )
        await self.history.note_eviction(period.id, problem=problem)
