"""Page `/pending`: waiting pods, with reason and duration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from fastapi import APIRouter, Request, Response
from hamicommon.ledger.questions import answer

from hami_metrics.domain.redaction import PageViewer
from hami_metrics.pages.amounts import gib
from hami_metrics.pages.cluster import PageCluster, Row
from hami_metrics.pages.nearest import SliceSize, nearest, nearest_text
from hami_metrics.pages.readings import MIB
from hami_metrics.pages.site import MAX_KEY, Site, text_of

PAGE_ROWS = 100
ASKED_WITHIN = timedelta(minutes=10)
"""Time within which kube-scheduler tries a waiting pod again, with a margin."""
MAX_SIZES = 10
"""Maximum number of sizes for which a page searches cards: 10 ms each with 8000 cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLine:
    """Row of one pod, or of several equal ones."""

    pod_uid: str
    namespace: str
    name: str
    """Name of the pod that has waited longest."""
    count: int
    asks: str
    size: SliceSize | None
    """Amounts requested of each card; None: not recorded."""
    since: datetime
    last_at: datetime
    attempts: int
    because: str
    reason: str
    ahead: int
    nearest: str = ""
    """Nearest card and what it lacks; empty: not searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPage:
    """Values for the template."""

    total: int
    tabs: Sequence[Row]
    """Reasons with the number of their pods, the most frequent first."""
    chosen: str
    lines: Sequence[WaitingLine]
    not_asked: int
    """Number of pods that kube-scheduler has not tried for longer than `ASKED_WITHIN`."""
    oldest_at: datetime | None


def pending_page(
    reasons: Iterable[Row],
    waiting: Sequence[Row],
    viewer: PageViewer,
    chosen: str,
    state: PageCluster | None,
    now: datetime,
) -> PendingPage:
    """Combine the answers to `pending-reasons` and `waiting-pods` with the cards' state."""
    tabs = sorted(reasons, key=lambda row: (-row["pod_count"], row["reason_code"]))
    lines: dict[tuple[object, ...], WaitingLine] = {}
    for row in waiting:
        line = _line(row, viewer)
        # Pods of one Job or ReplicaSet differ in the last part of their names.
        stem = line.name.rpartition("-")[0] or line.name
        alike = (line.namespace, line.asks, line.because, stem)
        first = lines.get(alike)
        lines[alike] = line if first is None else _merge_lines(first, line)
    found: dict[SliceSize | None, str] = {}
    if state is not None:
        sizes = list(dict.fromkeys(line.size for line in lines.values() if line.size is not None))
        found = {size: nearest_text(nearest(state, size)) for size in sizes[:MAX_SIZES]}
    return PendingPage(
        total=sum(tab["pod_count"] for tab in tabs),
        tabs=tabs,
        chosen=chosen,
        lines=[replace(line, nearest=found.get(line.size, "")) for line in lines.values()],
        not_asked=sum(now - row["last_at"] > ASKED_WITHIN for row in waiting),
        oldest_at=min((tab["oldest_at"] for tab in tabs), default=None),
    )


def _line(row: Row, viewer: PageViewer) -> WaitingLine:
    seen = viewer.sees(row["namespace"])
    return WaitingLine(
        pod_uid=row["pod_uid"] if seen else "",
        namespace=viewer.namespace(row["namespace"]),
        name=row["pod_name"] if seen else "",
        count=1,
        asks=_asks(row),
        size=_size(row),
        since=row["since_at"],
        last_at=row["last_at"],
        attempts=row["attempt_count"],
        # The sentence may name a namespace's quota; the code names no namespace.
        because=(row["summary"] if seen else "") or row["reason_code"],
        reason=row["reason_code"],
        ahead=row["ahead_count"],
    )


def _merge_lines(first: WaitingLine, line: WaitingLine) -> WaitingLine:
    return replace(
        first,
        count=first.count + 1,
        since=min(first.since, line.since),
        last_at=max(first.last_at, line.last_at),
        attempts=max(first.attempts, line.attempts),
        ahead=min(first.ahead, line.ahead),
    )


def _size(row: Row) -> SliceSize | None:
    if not row["card_count"]:
        return None
    memory = row["memory_bytes"]
    return SliceSize(
        count=row["card_count"],
        memory_mib=None if memory is None else memory // MIB,
        memory_ratio=row["memory_ratio"],
        core_percent=round(100 * (row["core_ratio"] or 0)),
    )


def _asks(row: Row) -> str:
    """Format `1 x 40 GiB 30 %`; unknown parts are `?`."""
    if row["card_count"] is None:
        return "?"
    parts = [f"{row['card_count']} x"]
    if row["memory_bytes"] is not None:
        parts.append(gib(row["memory_bytes"] / MIB))
    elif row["memory_ratio"] is not None:
        parts.append(f"{100 * row['memory_ratio']:.0f} % of its memory")
    else:
        parts.append("card")
    if row["core_ratio"] == 0:
        parts.append("any cores")
    elif row["core_ratio"]:
        parts.append(f"{100 * row['core_ratio']:.0f} % cores")
    return " ".join(parts)


def routes(site: Site) -> APIRouter:
    """Serve the list of waiting pods."""
    router = APIRouter()

    @router.get("/pending")
    async def pending(request: Request) -> Response:
        asked = await site.open_request(request)
        reason, namespace = text_of(request, "reason"), text_of(request, "ns")
        after = text_of(request, "after", MAX_KEY)
        parameters: dict[str, object] = {"at": asked.moment.shown}
        chosen = {"reason": reason or None, "namespace": namespace or None}
        async with site.ledger.connection() as connection:
            reasons = await answer(connection, "pending-reasons", parameters)
            waiting = await answer(
                connection,
                "waiting-pods",
                parameters | chosen,
                limit=PAGE_ROWS,
                after=site.seal.open(after) if after else None,
            )
        names = {str(row["namespace"]) for row in waiting.rows}
        asked = await site.review_names(asked, request, names)
        page = pending_page(
            reasons.rows, waiting.rows, asked.viewer, reason, asked.state, asked.moment.shown
        )
        more = None if waiting.next is None else site.seal.close(waiting.next)
        return site.answer(
            asked, "pending.html", page=page, namespace=namespace, more=more, here="pending"
        )

    return router
