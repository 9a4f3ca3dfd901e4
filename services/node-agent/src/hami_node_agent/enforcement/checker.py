"""Check limits after each of the monitor's samples, and report violations to the scheduler.

Input: the monitor's looks, records, pods, and the kubelet's checkpoint, asked only about containers
that use a card and have no grant. Output: the standing of each container on each card, for /metrics
(`metrics/limits.py`) and for the scheduler (`hami.limits.v1.<node>`): immediately on a change, and
periodically. Every message has all findings of the node, so the next one replaces a lost one.
Nothing is ended here: the scheduler does that, if the operator enables it.

Containers without the library have no region, so their samples come from here as well.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from hamicommon import events
from hamicommon.clipping import clip
from hamicommon.domain.granted_cards import LimitState
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Unavailable
from hamicommon.events import ContainerSample, DeviceSample, LimitCheck, LimitFinding
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.outages import Outage

from hami_node_agent.enforcement.judgement import (
    MIB,
    CardTotals,
    ContainerKey,
    Facts,
    KnownPods,
    Limit,
    LimitKey,
    NodeView,
    Resolver,
    Tolerance,
    judge,
    limits_of,
    view_of,
)
from hami_node_agent.enforcement.periods import Standing, Timing, advance
from hami_node_agent.grants.ports import KubeletState, Publisher
from hami_node_agent.grants.records import Record, shared_records
from hami_node_agent.grants.state import NodeState
from hami_node_agent.usage.monitor import Monitor, MonitorLook

logger = logging.getLogger(__name__)

ANSWER_TTL_S = 30.0
"""Time for which the kubelet's answer is cached, so that tenants can't make us ask often."""
_ELSEWHERE = (
    "the kubelet gave it devices and this agent has no grant of it: another device plugin did, or "
    "its grant is not known here any more (`hamictl adopt` takes HAMi's pods over)"
)
_BY_CLAIM = (
    "the kubelet gave it a slice by a ResourceClaim that another pod has, and its own grant has "
    "not arrived yet"
)
_NOT_ASKED = "the kubelet's checkpoint and PodResources can't be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPolicy:
    """Operator's settings of the checks."""

    tolerance: Tolerance = field(default_factory=Tolerance)
    timing: Timing = field(default_factory=Timing)
    exempt_namespaces: frozenset[str] = frozenset()
    controlled: bool = True
    """Whether containers run with the library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of a check of all containers."""

    standings: Mapping[LimitKey, Standing] = field(default_factory=dict)
    totals: Mapping[str, CardTotals] = field(default_factory=dict)
    """Totals by card."""
    looked_s: float | None = None
    """Time of the last check on the monotonic clock; None: there was none."""
    settled: bool = False
    """Whether checks have run for long enough that containers without a state are good."""


@dataclass(eq=False)
class LimitChecker:
    """Compare what processes hold with what their containers were granted.

    `devices`: the last samples of the cards.
    """

    monitor: Monitor
    state: NodeState
    pods: KnownPods
    kubelet_state: KubeletState
    _: KW_ONLY
    policy: CheckPolicy
    devices: Callable[[], tuple[DeviceSample, ...]]
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    clock: Callable[[], float] = time.monotonic
    _began_s: float | None = field(default=None, init=False)
    _unresolved: Mapping[tuple[str, int], int] = field(default_factory=dict, init=False)
    _asked: dict[ContainerKey, tuple[float, str]] = field(default_factory=dict, init=False)
    """Time of the kubelet's answer about a container, and the sentence that follows from it."""
    _limits: tuple[object, object, Mapping[ContainerKey, Mapping[str, Limit]]] | None = field(
        default=None, init=False
    )
    """Cached limits, with the records and ended pods from which they were computed."""
    checked: CheckResult = field(default_factory=CheckResult, init=False)

    async def next_check(self, seen: int) -> int:
        """Wait for a sample after version `seen` and check it; return its version."""
        version = await self.monitor.looks.wait(seen)
        with self.bulkhead.item("limits", "look"):
            await self.check(self.monitor.last_look)
        return version

    async def check(self, look: MonitorLook) -> None:
        """Check the limits of all containers in this sample."""
        now_s = self.clock()
        if self._began_s is None:
            self._began_s = now_s
        ended = self.pods.snapshot().ended
        limits = self._limits_now(ended)
        view = self._view(look, limits)
        facts = await self._with_elsewhere(view.facts, now_s)
        standings = advance(
            self.checked.standings,
            judge(facts, self.policy.tolerance),
            now_s=now_s,
            timing=self.policy.timing,
            gone=frozenset[str](ended),
        )
        self._log_changes(standings)
        self._unresolved = view.unresolved
        self.checked = CheckResult(
            standings=standings,
            totals=view.totals,
            looked_s=now_s,
            settled=now_s - self._began_s >= 2 * self.policy.timing.grace_s,
        )

    def _limits_now(self, ended: frozenset[PodUid]) -> Mapping[ContainerKey, Mapping[str, Limit]]:
        """Return the limits, computed again only if the records or the ended pods were replaced."""
        records, before = self.state.saved.records, self._limits
        if before is None or before[0] is not records or before[1] is not ended:
            found = limits_of(records.values(), ended=ended, controlled=self.policy.controlled)
            before = self._limits = (records, ended, found)
        return before[2]

    def _view(
        self, look: MonitorLook, limits: Mapping[ContainerKey, Mapping[str, Limit]]
    ) -> NodeView:
        used = {
            sample.uuid: None
            if sample.memory_used_bytes is None
            else sample.memory_used_bytes // MIB
            for sample in self.devices()
        }
        return view_of(
            look,
            resolver=Resolver(
                self.pods,
                limits,
                self.policy.exempt_namespaces,
                shared_records(self.state.saved.records, self.state.book),
            ),
            limits=limits,
            directories={
                record.cache_dir: ContainerKey(record.pod_uid, record.container)
                for record in self.state.saved.records.values()
            }
            if look.unreadable
            else {},
            cards=self.state.cards,
            used_mib=used.get,
            before=self._unresolved,
        )

    async def _with_elsewhere(self, facts: Facts, now_s: float) -> Facts:
        """Add the kubelet's devices of containers that use a card without a grant."""
        suspects = {each.owner for each in facts.processes if each.owner not in facts.limits}
        self._asked = {
            owner: known
            for owner, known in self._asked.items()
            if owner in suspects and now_s - known[0] < ANSWER_TTL_S
        }
        if new := suspects - self._asked.keys():
            try:
                held = {
                    ContainerKey(holding.pod_uid, holding.container)
                    for holding in await self.kubelet_state.holdings()
                }
                answers = dict.fromkeys(new & held, _ELSEWHERE)
                answers |= await self._by_claims(new - held)
            except Unavailable as exc:
                logger.warning(
                    "Failed to ask the kubelet which containers hold cards, retrying",
                    extra={"error": str(exc)},
                )
                # Asked again with the next look.
                return replace(facts, elsewhere=dict.fromkeys(suspects, _NOT_ASKED))
            self._asked |= {owner: (now_s, text) for owner, text in answers.items()}
        return replace(
            facts, elsewhere={owner: text for owner, (_, text) in self._asked.items() if text}
        )

    async def _by_claims(self, owners: Set[ContainerKey]) -> dict[ContainerKey, str]:
        """Return sentences about containers that have devices by ResourceClaims.

        The kubelet starts a second pod of a claim without asking us, so its grant comes later.
        """
        if not owners:
            return {}
        try:
            claiming = await self.kubelet_state.claiming()
        except Unavailable:
            # Where PodResources can't be read, no tenant is to be hidden by that.
            claiming = frozenset()
        found = {}
        for owner in owners:
            pod = self.pods.name_of(owner.pod_uid)
            named = pod is not None and (pod.namespace, pod.name, owner.container) in claiming
            found[owner] = _BY_CLAIM if named else ""
        return found

    def _log_changes(self, standings: Mapping[LimitKey, Standing]) -> None:
        for key, standing in standings.items():
            before = self.checked.standings.get(key)
            if standing.state is None or not standing.state.violates:
                continue
            if before is None or before.state is not standing.state:
                logger.warning(
                    "Found a container that exceeds its grant",
                    extra={
                        "pod_uid": key.pod_uid,
                        "container": key.container,
                        "device_uuid": key.card,
                        "state": str(standing.state),
                        "reason": standing.judgement.reason,
                    },
                )


MAX_REASON_LENGTH = 500
_Reported = tuple[tuple[LimitKey, LimitState, float], ...]


@dataclass(eq=False)
class LimitPublisher:
    """Publish the results of checks."""

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
            failed="Retrying to publish limit checks",
            again="Published limit checks again",
        ),
        init=False,
    )
    _reported: _Reported | None = field(default=None, init=False)
    _reported_s: float = field(default_factory=lambda: float("-inf"), init=False)

    async def run(self) -> None:
        """Check and publish after each sample until cancelled."""
        seen = 0
        while True:
            seen = await self.checker.next_check(seen)
            await self.publish()

    async def publish(self) -> None:
        """Publish the last check if it has changed, or if the interval is over."""
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
            # The next check retries with its own findings.
            self._outage.on_failure(exc)
        else:
            self._outage.on_success()
            self._reported, self._reported_s = state, now_s

    def _message(
        self, checked: CheckResult, open_: list[tuple[LimitKey, Standing]], now_s: float
    ) -> LimitCheck:
        now = datetime.now(UTC)
        worst = sorted(open_, key=lambda each: (-_state_of(each[1]).severity, each[0]))
        findings = (
            self._finding(key, standing, now - timedelta(seconds=now_s - standing.since_s))
            for key, standing in worst[: events.MAX_FINDINGS]
        )
        return LimitCheck(
            node=self.node,
            agent_id=self.agent_id,
            sequence=self._sequence,
            checked_at=now,
            containers=sum(
                1 for each in checked.standings.values() if each.judgement.granted_mib > 0
            ),
            settled=checked.settled and len(worst) <= events.MAX_FINDINGS,
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
            reason=clip(judgement.reason, MAX_REASON_LENGTH),
        )


def _state_of(standing: Standing) -> LimitState:
    assert standing.state is not None
    return standing.state


def _spelt(state: LimitState) -> Literal["exceeded", "bypassed", "unknown"]:
    if state is LimitState.EXCEEDED:
        return "exceeded"
    return "bypassed" if state is LimitState.BYPASSED else "unknown"


def plain_samples(records: Iterable[Record], checked: CheckResult) -> tuple[ContainerSample, ...]:
    """Return memory samples of containers without the library; their cores are unknown."""
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
