"""Compute which periods of violations begin, continue and end with a node's check. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hamicommon.domain.granted_cards import LimitState
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.events import LimitCheck, LimitFinding

REASONS = {LimitState.EXCEEDED: "LimitExceeded", LimitState.BYPASSED: "LimitBypassed"}
"""Reasons of the pod's events and its condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPeriod:
    """Period in which a container exceeded its grant on a card."""

    id: int = 0
    """Number of the row; 0: not written yet."""
    node: str
    pod_uid: str
    namespace: str
    pod_name: str
    container: str
    device_uuid: str
    state: LimitState
    reason: str
    began_at: datetime
    recorded_at: datetime | None = None
    """Time of recording by the ledger's clock; None: not written yet."""
    held_mib: int | None
    peak_mib: int
    granted_mib: int

    @property
    def key(self) -> tuple[str, str, str]:
        """Return container and card; a node has one open period for each."""
        return (self.pod_uid, self.container, self.device_uuid)

    @property
    def pod(self) -> PodRef:
        """Return the names of the pod."""
        return PodRef(self.namespace, self.pod_name, PodUid(self.pod_uid))

    @property
    def subject(self) -> str:
        """Return its name in the drift journal."""
        return f"{self.namespace}/{self.pod_name} ({self.pod_uid})"

    @property
    def sentence(self) -> str:
        """Return the finding as a sentence."""
        of = f"container {self.container}" if self.container else "a container"
        return f"{of} on {self.node}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodChanges:
    """Changes of a node's open periods by a check."""

    begun: tuple[LimitPeriod, ...] = ()
    going_on: tuple[LimitPeriod, ...] = ()
    """Continuing periods, with the check's values."""
    over: tuple[tuple[LimitPeriod, datetime], ...] = ()
    """Ended periods with their ends."""


def changes(
    open_periods: Iterable[LimitPeriod],
    check: LimitCheck,
    findings: Sequence[LimitFinding],
    *,
    received_at: datetime,
) -> PeriodChanges:
    """Compute the changes; `findings`: those about pods on the check's node.

    Times are the node's where they name when something began; no period begins after the bus took
    the report, or ends before it began, whatever a node's clock shows.
    """
    before = {period.key: period for period in open_periods}
    begun, going_on, over = [], [], []
    for finding in findings:
        found = _period(check.node, finding, received_at)
        known = before.pop(found.key, None)
        if known is not None and known.state is found.state:
            going_on.append(
                replace(
                    known,
                    reason=found.reason,
                    held_mib=found.held_mib,
                    peak_mib=max(known.peak_mib, found.peak_mib),
                    granted_mib=found.granted_mib,
                )
            )
            continue
        if known is not None:
            at = max(known.began_at, found.began_at)
            over.append((known, at))
            found = replace(found, began_at=at)
        begun.append(found)
    if check.settled:
        over += [(period, max(period.began_at, received_at)) for period in before.values()]
    return PeriodChanges(begun=tuple(begun), going_on=tuple(going_on), over=tuple(over))


_SAME_NAMES = (
    *("pod_uid", "namespace", "container", "reason", "held_mib", "peak_mib", "granted_mib"),
)


def _period(node: str, finding: LimitFinding, received_at: datetime) -> LimitPeriod:
    return LimitPeriod(
        **{name: getattr(finding, name) for name in _SAME_NAMES},
        node=node,
        pod_name=finding.pod,
        device_uuid=finding.uuid,
        state=LimitState(finding.state),
        began_at=min(finding.since, received_at),
    )


def drift_class(state: LimitState) -> str:
    """Return the drift class of a violation."""
    return f"limit-{state}"


MAX_REPORT_AGE_S = 15.0
"""Age of a report above which it is too old for an eviction."""
SECOND_LOOK_S = 10.0
"""Minimum time between the report that began the period and the one that evicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionPolicy:
    """Operator's settings of evictions."""

    after_s: float = 30.0
    per_minute: int = 5
    """Maximum number of evictions per minute in the cluster."""


def due(
    period: LimitPeriod,
    finding: LimitFinding,
    *,
    received_at: datetime,
    now: datetime,
    policy: EvictionPolicy,
) -> bool:
    """Return whether the report is a reason to evict the pod.

    Only known violations count, in a fresh report, at a second check after the scheduler's own
    grace period, and only a few pods per minute are ended: a card whose driver misreports, or a
    node that lies about its own pods, ends few of them before an operator notices.
    """
    if not (period.state.violates and finding.violating) or period.recorded_at is None:
        return False
    if now - received_at > timedelta(seconds=MAX_REPORT_AGE_S):
        return False
    lasted_s = (received_at - period.began_at).total_seconds()
    known_s = (now - period.recorded_at).total_seconds()
    return lasted_s >= policy.after_s and known_s >= SECOND_LOOK_S
