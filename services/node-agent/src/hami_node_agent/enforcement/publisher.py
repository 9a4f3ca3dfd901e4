"""Reports of containers beyond their grants: immediately when that changes, and now and then
anyway.

In: `LimitChecker.checked`. Out: `hami.limits.v1.<node>`, whose every message has all findings of
the node, so one that was lost is made good by the next; and samples of containers without the
library, which only the driver's list of processes shows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from hamicommon import events
from hamicommon.clipping import clip
from hamicommon.domain.limits import LimitState
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Unavailable
from hamicommon.events import ContainerSample, LimitCheck, LimitFinding
from hamicommon.process.outages import Outage

from hami_node_agent.enforcement.checker import Checked, LimitChecker
from hami_node_agent.enforcement.judgement import LimitKey
from hami_node_agent.enforcement.look import MIB
from hami_node_agent.enforcement.periods import Standing
from hami_node_agent.grants.ports import Publisher
from hami_node_agent.grants.records import Record

logger = logging.getLogger(__name__)

MOST_OF_A_REASON = 500
_Reported = tuple[tuple[LimitKey, LimitState, float], ...]


@dataclass(eq=False)
class LimitPublisher:
    """Publishes what the checker found."""

    checker: LimitChecker
    bus: Publisher
    name_of: Callable[[str], PodRef | None]
    _: KW_ONLY
    node: str
    agent_id: str
    clock: Callable[[], float] = time.monotonic
    _sequence: int = field(default=0, init=False)
    _outage: Outage = field(
        default_factory=lambda: Outage(
            logger,
            failed="limit checks not published, retrying",
            again="limit checks published again",
        ),
        init=False,
    )
    _reported: _Reported | None = field(default=None, init=False)
    _reported_s: float = field(default_factory=lambda: float("-inf"), init=False)

    async def run(self) -> None:
        """Checks and publishes with every look until cancelled."""
        seen = 0
        while True:
            seen = await self.checker.next_check(seen)
            await self.publish()

    async def publish(self) -> None:
        """Publishes the last check if it is news, or if it is time to."""
        checked, now_s = self.checker.checked, self.clock()
        if checked.looked_s is None:
            return
        open_ = [
            (key, standing)
            for key, standing in checked.standings.items()
            if standing.state not in (None, LimitState.ENFORCED)
        ]
        state = tuple(sorted((key, _state_of(each), each.since_s) for key, each in open_))
        busy = any(_state_of(each).violates for _, each in open_)
        pause_s = events.LIMITS_BUSY_S if busy else events.LIMITS_HEARTBEAT_S
        if state == self._reported and now_s - self._reported_s < pause_s:
            return
        self._sequence += 1
        message = self._message(checked, open_, now_s)
        try:
            await self.bus.publish(
                events.limits_subject(self.node),
                message,
                message_id=f"{self.agent_id}:limits:{self._sequence}",
            )
        except Unavailable as exc:
            # The next look tries again, with what is so then.
            self._outage.failed(exc)
        else:
            self._outage.worked()
            self._reported, self._reported_s = state, now_s

    def _message(
        self, checked: Checked, open_: list[tuple[LimitKey, Standing]], now_s: float
    ) -> LimitCheck:
        now = datetime.now(UTC)
        worst = sorted(open_, key=lambda each: (-_state_of(each[1]).severity, each[0]))
        findings = (
            self._finding(key, standing, now - timedelta(seconds=now_s - standing.since_s))
            for key, standing in worst[: events.MOST_FINDINGS]
        )
        return LimitCheck(
            node=self.node,
            agent_id=self.agent_id,
            sequence=self._sequence,
            checked_at=now,
            containers=sum(
                1 for each in checked.standings.values() if each.judgement.granted_mib > 0
            ),
            settled=checked.settled and len(worst) <= events.MOST_FINDINGS,
            findings=tuple(findings),
        )

    def _finding(self, key: LimitKey, standing: Standing, since: datetime) -> LimitFinding:
        pod = self.name_of(key.pod_uid)
        judgement = standing.judgement
        return LimitFinding(
            pod_uid=key.pod_uid,
            namespace="" if pod is None else pod.namespace,
            pod="" if pod is None else pod.name,
            container=key.container,
            uuid=key.card,
            state=_spelt(_state_of(standing)),
            since=since,
            held_mib=judgement.held_mib,
            peak_mib=standing.peak_mib,
            granted_mib=judgement.granted_mib,
            violating=standing.violating,
            reason=clip(judgement.reason, MOST_OF_A_REASON),
        )


def _state_of(standing: Standing) -> LimitState:
    assert standing.state is not None
    return standing.state


def _spelt(state: LimitState) -> Literal["exceeded", "bypassed", "unknown"]:
    if state is LimitState.EXCEEDED:
        return "exceeded"
    return "bypassed" if state is LimitState.BYPASSED else "unknown"


def plain_samples(records: Iterable[Record], checked: Checked) -> tuple[ContainerSample, ...]:
    """Memory by card of each such container in the last look; their cores are not known."""
    return tuple(
        _sample(record, position, standing.judgement.held_mib)
        for record in records
        if record.plain and record.allocation_id
        for position, share in enumerate(record.shares)
        if (
            standing := checked.standings.get(
                LimitKey(record.pod_uid, record.container, share.uuid)
            )
        )
        is not None
        and standing.looked_s == checked.looked_s
    )


def _sample(record: Record, position: int, held_mib: int | None) -> ContainerSample:
    share = record.shares[position]
    return ContainerSample(
        pod_uid=record.pod_uid,
        namespace=record.namespace,
        pod=record.pod_name,
        container=record.container,
        vdevice_index=position,
        uuid=share.uuid,
        memory_used_bytes=None if held_mib is None else held_mib * MIB,
        memory_limit_bytes=share.memory_mib * MIB,
        core_limit_percent=share.core_percent,
    )
