"""One pod: why it is where it is or waits, what it asked for, got, may have and uses. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hamicommon.domain.granted_cards import texts_of
from hamicommon.telemetry.waterfall import Waterfall

from hami_metrics.pages.domain.cluster import PageCluster
from hami_metrics.pages.domain.details import (
    Attempt,
    GrantChange,
    PodRecord,
    Slice,
    StoredDecision,
)
from hami_metrics.pages.domain.nearest import CardLack, SliceSize, nearest, nearest_cards
from hami_metrics.pages.domain.ranks import LastHour
from hami_metrics.pages.views.elements.amounts import share
from hami_metrics.pages.views.elements.charts import UseChart, cores, memory_gib, use_chart
from hami_metrics.pages.views.elements.nearest import lack_text, nearest_text
from hami_metrics.pages.views.elements.waterfall import (
    StepPicture,
    decision_waterfall,
    grant_waterfall,
    trace_waterfall,
)

_TRACE_ID = re.compile("[0-9a-f]{32}")
"""W3C Trace Context, trace-id."""
NEAR_CARDS = 5
LIVE = frozenset({"reserved", "binding", "bound", "allocated", "releasing"})
WAIT_ENDS = {"deleted": "deleted, never placed", "gone": "deleted, never placed"}
"""Status of a refused pod by how its wait ended; any other way is `waits no longer`."""
CHECKED_FOR = timedelta(minutes=3)
"""A node's check of limits is as good as unknown when it is older."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSlice:
    """What one container asked of cards; None: no amount."""

    container: str
    count: int
    memory_mib: int | None
    memory_percent: int | None
    core_percent: int | None
    vendor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLine:
    """Granted, enforced and used of one slice; None is unknown."""

    slice: Slice
    used_mib: float | None
    core_used_percent: float | None
    enforced: str
    used: int | None
    """Percent of what was granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPage:
    """Everything that the template asks for."""

    pod: PodRecord
    status: str
    glyph: str
    since: datetime | None
    sentence: str
    """The first reason, as it was stored."""
    decision: StoredDecision | None
    asked: Sequence[AskedSlice]
    current: Attempt | None
    lines: Sequence[SliceLine]
    troubles: Sequence[str]
    """Troubles of the pod's cards, and what to do."""
    refusals: Sequence[tuple[str, int]]
    decision_picture: StepPicture
    grant_picture: StepPicture
    trace_picture: StepPicture | None
    """Of all services; None: no span of the pod is here."""
    trace_url: str
    """Of the decision's trace in a viewer; empty: none is known."""
    charts: Sequence[UseChart]
    nearest: str
    """The nearest node, and what it lacks; empty: it does not wait, or nobody knows for what."""
    near: Sequence[tuple[CardLack, str]]
    """The nearest cards, and what each lacks."""
    timeline: Sequence[tuple[datetime, str]]

    @property
    def over(self) -> bool:
        """Whether the pod neither holds nor waits for anything."""
        return self.glyph == "○"


def pod_page(
    pod: PodRecord,
    now: datetime,
    *,
    hour: LastHour | None = None,
    drawn: Waterfall | None = None,
    trace_url: str = "",
    state: PageCluster | None = None,
) -> PodPage:
    """`now`: the moment that is shown; what ended later still held then. `state`: the cards.

    `trace_url`: with `{trace_id}` in it.
    """
    current = next((one for one in pod.attempts if _held(one, now)), None)
    decision = pod.decisions[0] if pod.decisions else None
    waiting = next((one for one in pod.decisions if one.outcome != "placed"), None)
    status, glyph, since = _status(pod, current, decision, now)
    if status == "waiting" and waiting is not None:
        since = _first_refusal(pod.decisions)
    asked = _asked(decision)
    waits = state is not None and status == "waiting"
    nearest_node, near = _near(state, asked) if waits and state is not None else ("", ())
    return PodPage(
        pod=pod,
        status=status,
        glyph=glyph,
        since=since,
        sentence="" if decision is None else decision.summary or decision.message,
        decision=decision,
        asked=asked,
        current=current,
        lines=[] if current is None else [_line(pod, one, now) for one in current.slices],
        troubles=texts_of(card.condition for card in pod.cards),
        refusals=_refusals(waiting),
        decision_picture=decision_waterfall(decision.phase_ms if decision else {}, hour),
        grant_picture=grant_waterfall(pod.events, now, hour),
        trace_picture=None if drawn is None else trace_waterfall(drawn),
        trace_url=_trace_url(trace_url, decision),
        charts=_charts(pod),
        nearest=nearest_node,
        near=near,
        timeline=_timeline(pod.decisions, pod.events),
    )


def _near(
    state: PageCluster, asked: Sequence[AskedSlice]
) -> tuple[str, Sequence[tuple[CardLack, str]]]:
    """Of a pod whose containers ask for cards in one way; others are the engine's to look at."""
    if len(asked) != 1 or not asked[0].count:
        return "", ()
    [one] = asked
    ratio = None if one.memory_percent is None else one.memory_percent / 100
    size = SliceSize(
        count=one.count,
        memory_mib=one.memory_mib,
        memory_ratio=ratio,
        core_percent=one.core_percent or 0,
    )
    lacks = nearest_cards(state, size, NEAR_CARDS)
    near = [(lack, lack_text(lack, size.count)) for lack in lacks]
    return nearest_text(nearest(state, size)), near


def _trace_url(template: str, decision: StoredDecision | None) -> str:
    if decision is None or not _TRACE_ID.fullmatch(decision.trace_id):
        return ""
    return template.replace("{trace_id}", decision.trace_id)


def _held(attempt: Attempt, now: datetime) -> bool:
    return attempt.ended_at is None or attempt.ended_at > now


def _status(
    pod: PodRecord, current: Attempt | None, decision: StoredDecision | None, now: datetime
) -> tuple[str, str, datetime | None]:
    if current is not None:
        running = current.state not in ("reserved", "binding") or current.ended_at is not None
        return (
            ("holds its slices", "●", current.reserved_at)
            if running
            else (
                "being placed",
                "◐",
                current.reserved_at,
            )
        )
    if decision is not None and decision.outcome != "placed":
        ended_at = decision.wait_ended_at
        if ended_at is None or ended_at > now:
            return "waiting", "▲", decision.at
        return WAIT_ENDS.get(decision.wait_end or "", "waits no longer"), "○", ended_at
    ended = pod.attempts[0].ended_at if pod.attempts else None
    return "ended", "○", ended


def _first_refusal(decisions: Iterable[StoredDecision]) -> datetime | None:
    """Of those since the last placement."""
    first = None
    for decision in decisions:
        if decision.outcome == "placed":
            break
        first = decision.at
    return first


def _asked(decision: StoredDecision | None) -> list[AskedSlice]:
    if decision is None:
        return []
    found = []
    for container in decision.request.get("containers", ()):
        for wanted in container.get("requests", ()):
            found.append(
                AskedSlice(
                    container=str(container.get("name", "")),
                    count=int(wanted.get("count") or 0),
                    memory_mib=wanted.get("memory_mib") or None,
                    memory_percent=wanted.get("memory_percent"),
                    core_percent=wanted.get("core_percent"),
                    vendor=str(wanted.get("vendor", "")),
                )
            )
    return found


def _line(pod: PodRecord, one: Slice, now: datetime) -> SliceLine:
    used = next(
        (
            use
            for use in pod.latest
            if use.device_uuid == one.device_uuid and use.container == one.container
        ),
        None,
    )
    return SliceLine(
        slice=one,
        used_mib=None if used is None else used.memory_mib,
        core_used_percent=None if used is None else used.core_percent,
        enforced=_enforced(pod, one, now),
        used=share(None if used is None else used.memory_mib, one.memory_mib),
    )


def _enforced(pod: PodRecord, one: Slice, now: datetime) -> str:
    for period in pod.limits:
        goes_on = period.ended_at is None or period.ended_at > now
        here = period.device_uuid == one.device_uuid and period.container in ("", one.container)
        if goes_on and here:
            return period.state
    for card in pod.cards:
        same = card.uuid == one.device_uuid and card.container == one.container
        if same and card.condition.kind.hides_limits:
            return "unknown"
    checked = pod.limits_checked_at
    return "enforced" if checked is not None and now - checked <= CHECKED_FOR else "unknown"


def _refusals(decision: StoredDecision | None) -> list[tuple[str, int]]:
    if decision is None:
        return []
    return sorted(decision.reason_counts.items(), key=lambda item: (-int(item[1]), item[0]))


def _charts(pod: PodRecord) -> list[UseChart]:
    cards = dict.fromkeys(point.device_uuid for point in pod.series)
    names = {uuid: f"card {uuid[-8:]}" for uuid in cards}
    return [
        use_chart("memory used", "GiB", pod.series, names, memory_gib),
        use_chart("cores used", "%", pod.series, names, cores),
    ]


def _timeline(
    decisions: Sequence[StoredDecision], events: Sequence[GrantChange]
) -> list[tuple[datetime, str]]:
    """The story in order; repeats of one refusal are one line.

    `decisions` are the newest first, `events` in their sequence, which decides where times are one.
    """
    story = []
    for one in reversed(decisions):
        times = f" x{one.repeat_count}" if one.repeat_count > 1 else ""
        text = one.summary or one.message
        story.append((one.at, f"{one.outcome}{times}" + (f": {text}" if text else "")))
    for event in events:
        by = f" by {event.actor}" if event.actor else ""
        why = f": {event.reason}" if event.reason else ""
        story.append((event.at, f"{event.state} on {event.node}{by}{why}"))
    return sorted(story, key=lambda line: line[0])
