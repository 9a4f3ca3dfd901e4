"""Page `/pods/{ns}/{name}`: why a pod is on its node or waits; its request, grant and use."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fastapi import APIRouter, Request, Response
from hamicommon.domain.granted_cards import texts_of
from hamicommon.domain.ids import NodeName
from hamicommon.errors import NotFound
from hamicommon.telemetry.waterfall import Waterfall

from hami_metrics.pages.amounts import length
from hami_metrics.pages.cluster import PageCluster, Row
from hami_metrics.pages.nearest import (
    CardLack,
    SliceSize,
    lack_text,
    nearest,
    nearest_cards,
    nearest_text,
)
from hami_metrics.pages.pod_record import (
    PodRecord,
    TraceFiles,
    find_pods,
    read_group,
    read_last_hour,
    read_pod,
)
from hami_metrics.pages.site import PageRequest, Site
from hami_metrics.pages.waterfall import (
    DecisionStep,
    LastHour,
    StepPicture,
    decision_steps,
    rank,
    trace_waterfall,
)

_TRACE_ID = re.compile("[0-9a-f]{32}")
"""Pattern of a trace id (W3C Trace Context)."""
MAX_NEAR_CARDS = 5
ENDS = frozenset({"released", "expired", "failed", "released_unconfirmed"})
"""States of an ended grant."""
WAIT_ENDS = {"deleted": "deleted, never placed", "gone": "deleted, never placed"}
"""Status of a refused pod by the way its wait ended; otherwise `no longer waiting`."""
CHECKED_FOR = timedelta(minutes=3)
"""Age from which a node's check of limits counts as unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceLine:
    """Granted, enforced and used amounts of one slice; None is unknown."""

    slice: Row
    used_mib: float | None
    core_used_percent: float | None
    enforced: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPage:
    """Values for the template."""

    pod: PodRecord
    status: str
    glyph: str
    since: datetime | None
    sentence: str
    """Stored sentence of the first reason."""
    decision: Row | None
    asked: Sequence[Row]
    """Amounts that each container requests of cards; None: no amount."""
    current: Row | None
    """Present grant."""
    lines: Sequence[SliceLine]
    troubles: Sequence[str]
    """Problems of the pod's cards, with advice."""
    refusals: Sequence[tuple[str, int]]
    steps: Sequence[DecisionStep]
    """Phases of the last decision."""
    trace_picture: StepPicture | None
    """Picture of the spans of all services; None: no span of the pod is available."""
    trace_url: str
    """Address of the decision's trace in a viewer; empty: none."""
    nearest: str
    """Nearest node, and what it lacks; empty: the pod does not wait, or its size is unknown."""
    near: Sequence[tuple[CardLack, str]]
    """Nearest cards, with what each lacks."""
    timeline: Sequence[tuple[datetime, str]]

    @property
    def group(self) -> str:
        """Path of the page of the group with which the pod starts; empty: it has none."""
        key = None if self.decision is None else self.decision["group_key"]
        return f"/groups/{key.removeprefix('group/')}" if key else ""

    @property
    def over(self) -> bool:
        """Return whether the pod has no grant and does not wait."""
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
    """Combine the record into the page's values.

    Args:
        pod: its record.
        now: the moment that is shown; what ended later still held then.
        hour: steps of other pods, to compare with.
        drawn: spans of all services.
        trace_url: address of a trace, with `{trace_id}` in it.
        state: all cards, where the nearest are wanted.
    """
    hour = hour or LastHour()
    current = next(
        (one for one in pod.attempts if one["ended_at"] is None or one["ended_at"] > now), None
    )
    decision = pod.decisions[0] if pod.decisions else None
    refused = next((one for one in pod.decisions if one["outcome"] != "placed"), None)
    counts = {} if refused is None else refused["reason_counts"]
    status, glyph, since = _status(pod, current, decision, now)
    asked = [] if decision is None else _requests(decision)
    nearest_node: str = ""
    near: Sequence[tuple[CardLack, str]] = ()
    if status == "waiting" and state is not None:
        nearest_node, near = _near(state, asked)
    trace_id = "" if decision is None else decision["trace_id"]
    return PodPage(
        pod=pod,
        status=status,
        glyph=glyph,
        since=since,
        sentence="" if decision is None else decision["summary"] or decision["message"],
        decision=decision,
        asked=asked,
        current=current,
        lines=[] if current is None else [_line(pod, one, now) for one in current["slices"]],
        troubles=texts_of(card.condition for card in pod.cards),
        refusals=sorted(counts.items(), key=lambda item: (-int(item[1]), item[0])),
        steps=decision_steps({} if decision is None else decision["phase_ms"], hour),
        trace_picture=None if drawn is None else trace_waterfall(drawn),
        trace_url=trace_url.replace("{trace_id}", trace_id)
        if _TRACE_ID.fullmatch(trace_id)
        else "",
        nearest=nearest_node,
        near=near,
        timeline=_timeline(pod, now, hour),
    )


def _status(
    pod: PodRecord, current: Row | None, decision: Row | None, now: datetime
) -> tuple[str, str, datetime | None]:
    if current is not None:
        is_placed = current["state"] not in ("reserved", "binding") or current["ended_at"]
        status, glyph = ("holds its slices", "●") if is_placed else ("being placed", "◐")
        return status, glyph, current["reserved_at"]
    if decision is not None and decision["outcome"] != "placed":
        ended_at = decision["wait_ended_at"]
        if ended_at is None or ended_at > now:
            return "waiting", "▲", _first_refusal(pod.decisions)
        return WAIT_ENDS.get(decision["wait_end"] or "", "no longer waiting"), "○", ended_at
    return "ended", "○", pod.attempts[0]["ended_at"] if pod.attempts else None


def _first_refusal(decisions: Iterable[Row]) -> datetime | None:
    """Return the first refusal since the last placement."""
    first = None
    for decision in decisions:
        if decision["outcome"] == "placed":
            break
        first = decision["at"]
    return first


def _requests(decision: Row) -> list[Row]:
    return [
        {
            "container": str(container.get("name", "")),
            "count": int(wanted.get("count") or 0),
            "memory_mib": wanted.get("memory_mib") or None,
            "memory_percent": wanted.get("memory_percent"),
            "core_percent": wanted.get("core_percent"),
        }
        for container in decision["request"].get("containers", ())
        for wanted in container.get("requests", ())
    ]


def _near(state: PageCluster, asked: Sequence[Row]) -> tuple[str, Sequence[tuple[CardLack, str]]]:
    """Return the nearest cards for a pod with one kind of slice; others need the engine."""
    if len(asked) != 1 or not asked[0]["count"]:
        return "", ()
    [one] = asked
    percent = one["memory_percent"]
    size = SliceSize(
        count=one["count"],
        memory_mib=one["memory_mib"],
        memory_ratio=None if percent is None else percent / 100,
        core_percent=one["core_percent"] or 0,
    )
    lacks = nearest_cards(state, size, MAX_NEAR_CARDS)
    near = [(lack, lack_text(lack, size.count)) for lack in lacks]
    return nearest_text(nearest(state, size)), near


def _line(pod: PodRecord, one: Row, now: datetime) -> SliceLine:
    place = (one["device_uuid"], one["container"])
    used = {(use["device_uuid"], use["container"]): use for use in pod.use}.get(place)
    return SliceLine(
        slice=one,
        used_mib=None if used is None else used["memory_mib"],
        core_used_percent=None if used is None else used["core_percent"],
        enforced=_enforcement_state(pod, place, now),
    )


def _enforcement_state(pod: PodRecord, place: tuple[str, str], now: datetime) -> str:
    uuid, container = place
    for period in pod.limits:
        goes_on = period["ended_at"] is None or period["ended_at"] > now
        is_here = period["device_uuid"] == uuid and period["container"] in ("", container)
        if goes_on and is_here:
            return str(period["state"])
    for card in pod.cards:
        if (card.uuid, card.container) == place and card.condition.kind.hides_limits:
            return "unknown"
    checked = pod.limits_checked_at
    return "enforced" if checked is not None and now - checked <= CHECKED_FOR else "unknown"


def _timeline(pod: PodRecord, now: datetime, hour: LastHour) -> list[tuple[datetime, str]]:
    """Return the events in order; repeats of one refusal are one line.

    A state of a grant has the time up to the next one, and its percentile in the hour before.
    """
    story = []
    for one in reversed(pod.decisions):
        times = f" x{one['repeat_count']}" if one["repeat_count"] > 1 else ""
        text = one["summary"] or one["message"]
        story.append((one["at"], f"{one['outcome']}{times}" + (f": {text}" if text else "")))
    ends = [*(event["at"] for event in pod.events[1:]), now]
    for event, end in zip(pod.events, ends, strict=False):
        by = f" by {event['actor']}" if event["actor"] else ""
        why = f": {event['reason']}" if event["reason"] else ""
        duration = ""
        if event["state"] not in ENDS:
            ms = max(0.0, (end - event["at"]).total_seconds() * 1000)
            among = rank(ms, hour.states_ms.get(event["state"], ()))
            duration = f", {length(ms)}" + ("" if among is None else f" · p{among}")
        story.append((event["at"], f"{event['state']} on {event['node']}{by}{why}{duration}"))
    # Events of one time stay in their sequence.
    return sorted(story, key=lambda line: line[0])


def routes(site: Site, traces: TraceFiles) -> APIRouter:
    """Serve the page of a pod, by its name or its uid."""
    router = APIRouter()

    @router.get("/pods/uid/{uid}")
    async def by_uid(uid: str, request: Request) -> Response:
        asked = await site.open_request(request)
        return await answer(asked, request, uid, f"with uid {uid}")

    @router.get("/pods/{namespace}/{name}")
    async def by_name(namespace: str, name: str, request: Request) -> Response:
        asked = await site.open_request(request)
        asked = await site.review_names(asked, request, [namespace])
        what = f"{namespace}/{name}"
        # As for a pod that is none, so that a viewer does not learn which pods there are.
        if not asked.viewer.sees(namespace):
            raise _unknown(what)
        async with site.ledger.look() as connection:
            found = await find_pods(connection, namespace, name, asked.moment.shown)
        if not found:
            raise _unknown(what)
        return await answer(asked, request, found[0]["pod_uid"], what)

    @router.get("/groups/{namespace}/{name}")
    async def group(namespace: str, name: str, request: Request) -> Response:
        asked = await site.open_request(request)
        asked = await site.review_names(asked, request, [namespace])
        what, key = f"{namespace}/{name}", f"group/{namespace}/{name}"
        if not asked.viewer.sees(namespace):
            raise _unknown(what, "group")
        async with site.ledger.look() as connection:
            decisions, members = await read_group(connection, key, asked.moment.shown)
        if not decisions and not members:
            raise _unknown(what, "group")
        return site.answer(
            asked, "group.html", name=what, decisions=decisions, members=members, here="pods"
        )

    async def answer(asked: PageRequest, request: Request, uid: str, what: str) -> Response:
        at = asked.moment.shown
        async with site.ledger.look() as connection:
            pod = await read_pod(connection, uid, at, silent=_silent_nodes(asked))
            hour = await read_last_hour(connection, at)
        if pod is None:
            raise _unknown(what)
        asked = await site.review_names(asked, request, [pod.namespace])
        if not asked.viewer.sees(pod.namespace):
            raise _unknown(what)
        # The newest decision's spans: in the past another one may have been the newest.
        drawn = None if asked.moment.past else await traces.of_pod(uid)
        page = pod_page(
            pod, at, hour=hour, drawn=drawn, trace_url=site.trace_url, state=asked.state
        )
        node = page.current["node"] if page.current else ""
        return site.answer(asked, "pod.html", page=page, here="pods", subject=node)

    return router


def _silent_nodes(asked: PageRequest) -> Collection[NodeName] | None:
    """Return nodes whose agents are silent now; None for a moment of the past."""
    if asked.moment.past:
        return None
    state = asked.state
    nodes = () if state is None else [one for one in state.nodes.values() if state.is_silent(one)]
    return {NodeName(node.name) for node in nodes}


def _unknown(what: str, kind: str = "pod") -> NotFound:
    return NotFound(f"the ledger has no {kind} {what[:300]}, or you may not see it")
