"""Takes what nodes find of limits.

History and drift, a Warning event per violation that begins, and, where the operator wants it, the
end of the pod (`evict.py`).

A node reports on its own pods: a finding about a pod that the API server does not have on that node
is left out, whatever the node may be.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from hamicommon.bus.client import Message
from hamicommon.bus.reader import read_of_node
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.events import LimitCheck, LimitFinding
from hamicommon.k8s.types import JsonMapping

from hami_scheduler.enforcement.evict import LimitEvictor
from hami_scheduler.enforcement.periods import REASONS, PeriodChanges, drift_class
from hami_scheduler.log_limit import LogLimit
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_events import Announcer

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.limits import PostgresLimits


logger = logging.getLogger(__name__)

SILENT_S = 600.0
"""Ten heartbeats of an agent: what it has not confirmed since is not known to continue."""
CLOSE_INTERVAL_S = 60.0


@dataclass(eq=False, kw_only=True)
class LimitChecks:
    """Consumer of `hami.limits.v1.*`.

    `pod_named`: the watch's, by namespace and name. `evictor`: None: report only.
    """

    history: PostgresLimits
    pod_named: Callable[[str, str], JsonMapping | None]
    announcer: Announcer
    instruments: SchedulerInstruments
    log_limit: LogLimit
    evictor: LimitEvictor | None

    async def handle(self, message: Message) -> None:
        """Take one check. Raises: InvalidRequest, Conflict, Unavailable."""
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
        if self.evictor is not None:
            await self._evict(self.evictor, changed, findings, message.received_at)

    async def close_silent(self) -> None:
        """End periods of nodes that report no more. Raises: Unavailable, Conflict."""
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
                "Found a limit that is not held",
                extra={"pod_uid": period.pod_uid, "state": str(period.state), "node": period.node},
            )
            pod = PodRef(
                uid=PodUid(period.pod_uid), namespace=period.namespace, name=period.pod_name
            )
            self.announcer.announce(pod, reason, period.sentence)

    async def _evict(
        self,
        evictor: LimitEvictor,
        changed: PeriodChanges,
        findings: Sequence[LimitFinding],
        received_at: datetime,
    ) -> None:
        by_key = {(f.pod_uid, f.container, f.uuid): f for f in findings}
        for period in changed.going_on:
            finding = by_key[period.key]
            with self.instruments.bulkhead.item("evict", period.pod_uid):
                await evictor.consider(period, finding, received_at=received_at)
