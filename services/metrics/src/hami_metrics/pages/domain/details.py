"""What is known of one card, node or pod beside its present state. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hamicommon.ledger.granted_cards import PodCard


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEvent:
    """A card became healthy or sick."""

    at: datetime
    node: str
    device_uuid: str
    healthy: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsePoint:
    """Five minutes or an hour of one card or one slice; None is unknown."""

    at: datetime
    device_uuid: str
    memory_mib: float | None
    memory_most_mib: float | None
    core_percent: float | None
    core_most_percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestUse:
    """The newest sample of one card (`pod_uid` empty) or one container's slice."""

    at: datetime
    device_uuid: str
    pod_uid: str
    container: str
    memory_mib: float | None
    memory_limit_mib: float | None
    core_percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPeriod:
    """One pod's time on a card."""

    allocation_id: str
    pod_uid: str
    namespace: str
    pod_name: str
    memory_mib: int
    core_percent: int
    began_at: datetime
    ended_at: datetime | None
    state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftRow:
    """A difference that the reconciler found."""

    at: datetime
    kind: str
    subject: str
    detail: str
    repaired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CardCounts:
    """Of the last 30 days."""

    holders: int
    incidents: int
    hit: int
    """Pods that were on the card while it was sick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One container's part of one card."""

    container: str
    role: str
    device_uuid: str
    memory_mib: int
    core_percent: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One grant of a pod."""

    id: str
    attempt: int
    node: str
    state: str
    reason: str
    origin: str
    reserved_at: datetime
    ended_at: datetime | None
    created_by: str | None
    owner: str | None
    slices: Sequence[Slice] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantChange:
    """One change of a grant."""

    at: datetime
    attempt: int
    node: str
    previous_state: str | None
    state: str
    reason: str
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDecision:
    """One decision as it was written down, the text of it included."""

    at: datetime
    last_at: datetime
    outcome: str
    node: str | None
    candidates: int
    summary: str
    message: str
    reason_counts: Mapping[str, int]
    repeat_count: int
    phase_ms: Mapping[str, float]
    trace_id: str
    view_version: int
    request: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    wait_ended_at: datetime | None = None
    """When a refused pod waited no longer; None: it waits."""
    wait_end: str | None = None
    """How: `deleted`, `gone`, `bound`, `finished`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitBreach:
    """A time in which a container was not held to its grant, or nobody knows."""

    container: str
    device_uuid: str
    state: str
    reason: str
    began_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceQuota:
    """`limits.<resource>` of a namespace; `limit` None: none. The resource's own units."""

    resource: str
    limit: int | None
    used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """Everything that is stored of one pod."""

    uid: str
    namespace: str
    name: str
    attempts: Sequence[Attempt]
    events: Sequence[GrantChange]
    decisions: Sequence[StoredDecision]
    """The newest first."""
    limits: Sequence[LimitBreach]
    limits_checked_at: datetime | None
    quotas: Sequence[NamespaceQuota]
    latest: Sequence[LatestUse]
    series: Sequence[UsePoint]
    cards: Sequence[PodCard]
    """The cards that it holds now, with their condition; empty at a moment of the past."""
    namesakes: Sequence[tuple[str, datetime]]
    """Other pods that had the name: uid, and when they were last granted something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStrip:
    """How many changes each part of a window had."""

    since: datetime
    until: datetime
    step: timedelta
    changes: Sequence[int]
    health: Sequence[int]
    """Of them, cards that became sick or healthy."""
    previous: datetime | None
    """The change before the moment that is shown, if any is kept."""
    following: datetime | None
    """The one after it."""
    first_record: datetime | None
    """Before it nothing is kept."""
