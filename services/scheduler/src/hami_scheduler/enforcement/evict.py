"""End pods that hold more than they were granted (`HAMI_SCHEDULER_ENFORCEMENT=evict`).

In: a period that continues, with the fresh finding that confirms it. What was begun stands in the
ledger, so a replica that dies in between is followed by another, and no pod is ended twice as fast
by two. `pod_ending.py` ends it.
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
from hamicommon.errors import HamiError
from hamicommon.events import LimitFinding

from hami_scheduler.enforcement.periods import REASONS, EvictionPolicy, LimitPeriod, due
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_ending import PodEnder
from hami_scheduler.pod_events import Announcer

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.limits import PostgresLimits

logger = logging.getLogger(__name__)

EVICTED = "LimitEviction"
RETRY_AFTER_S = 60.0
"""A pod that is still there, or could not be ended, is retried then."""
MAX_PROBLEM_LENGTH = 512


@dataclass(eq=False, kw_only=True)
class LimitEvictor:
    """Evicts pods that exceed or bypass their limits, one by one."""

    history: PostgresLimits
    ender: PodEnder
    announcer: Announcer
    instruments: SchedulerInstruments
    policy: EvictionPolicy
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def consider(
        self, period: LimitPeriod, finding: LimitFinding, *, received_at: datetime
    ) -> None:
        """End the period's pod if it is due. Raises: Unavailable, Conflict (of the ledger)."""
        now = self.clock()
        if not due(period, finding, received_at=received_at, now=now, policy=self.policy):
            return
        claimed = await self.history.claim_eviction(
            period.id, per_minute=self.policy.per_minute, again_after_s=RETRY_AFTER_S
        )
        if not claimed:
            return
        message = f"ended for {period.sentence}"
        pod = PodRef(uid=PodUid(period.pod_uid), namespace=period.namespace, name=period.pod_name)
        try:
            condition = (REASONS[period.state], message)
            problem = await self.ender.end(pod, period.node, condition=condition)
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
            self.announcer.announce(pod, EVICTED, message)
            logger.warning(
                "Evicted a pod that exceeded or bypassed its limits",
                extra={"pod_uid": period.pod_uid},
            )
        await self.history.note_eviction(period.id, problem=problem)
