"""Ends pods that hold more than they were granted (`HAMI_SCHEDULER_ENFORCEMENT=evict`).

In: a period that goes on, with the fresh finding that confirms it. The pod is read again, gets the
condition `DisruptionTarget` with the reason, and is deleted; its controller makes a new one. It is
not evicted: a disruption budget is the tenant's own object, and would keep its pod here. What was
begun stands in the ledger, so a replica that dies in between is followed by another, and
nobody's pod is ended twice as fast by two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hamicommon.clipping import clip
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import HamiError, NotFound, Unavailable
from hamicommon.events import LimitFinding

from hami_scheduler.enforcement.eviction_rules import (
    EvictionPolicy,
    due,
    grace_s,
    why_not,
    with_condition,
)
from hami_scheduler.enforcement.periods import REASONS, LimitPeriod
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_events import Announcer
from hami_scheduler.ports.cluster import PodApi

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.limits import PostgresLimits


logger = logging.getLogger(__name__)

EVICTED = "LimitEviction"
AGAIN_AFTER_S = 60.0
"""A pod that is still there, or could not be ended, is tried again then."""
MOST_OF_A_PROBLEM = 512


@dataclass(eq=False, kw_only=True)
class LimitEvictor:
    """Ends them one by one."""

    history: PostgresLimits
    pods: PodApi
    announcer: Announcer
    instruments: SchedulerInstruments
    policy: EvictionPolicy
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def consider(
        self, period: LimitPeriod, finding: LimitFinding, *, received_at: datetime
    ) -> None:
        """Ends the period's pod if it is due. Raises: Unavailable, Conflict (of the ledger)."""
        now = self.clock()
        if not due(period, finding, received_at=received_at, now=now, policy=self.policy):
            return
        claimed = await self.history.claim_eviction(
            period.id, per_minute=self.policy.per_minute, again_after_s=AGAIN_AFTER_S
        )
        if not claimed:
            return
        try:
            problem = await self._end(period, now)
        except (HamiError, Unavailable) as exc:
            problem = clip(str(exc), MOST_OF_A_PROBLEM)
        result = "failed" if problem else "ended"
        self.instruments.limit_evictions.labels(result).inc()
        if problem:
            logger.warning(
                "pod beyond its grant not ended",
                extra={"pod_uid": period.pod_uid, "error": problem},
            )
        await self.history.note_eviction(period.id, problem=problem)

    async def _end(self, period: LimitPeriod, now: datetime) -> str:
        """Why not; empty: done. Raises: HamiError."""
        try:
            pod = await self.pods.get(period.namespace, period.pod_name)
            if problem := why_not(pod, period):
                return problem
            message = f"ended for {period.sentence}"
            conditions = (pod.get("status") or {}).get("conditions") or []
            shown = with_condition(conditions, REASONS[period.state], message, now=now)
            try:
                await self.pods.set_conditions(pod, shown)
            except NotFound:
                raise
            except HamiError as exc:
                # The pod is ended all the same; its event and its period have the reason.
                logger.warning("condition not written", extra={"error": str(exc)})
            await self.pods.delete(pod, grace_s=grace_s(pod))
        except NotFound:
            return "it is gone"
        self.announcer.announce(
            PodRef(uid=PodUid(period.pod_uid), namespace=period.namespace, name=period.pod_name),
            EVICTED,
            message,
        )
        logger.warning("pod beyond its grant ended", extra={"pod_uid": period.pod_uid})
        return ""
