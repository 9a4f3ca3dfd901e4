"""What waits, for what and since when. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from hami_metrics.pages.domain.cluster import PageCluster
from hami_metrics.pages.domain.nearest import SliceSize, nearest
from hami_metrics.pages.views.elements.amounts import gib
from hami_metrics.pages.views.elements.nearest import nearest_text
from hami_metrics.pages.views.elements.viewer import PageViewer

_MIB = 1024 * 1024
ASKED_WITHIN = timedelta(minutes=10)
"""kube-scheduler tries every pod again after five minutes."""
MOST_SIZES = 10
"""Of one page: each is looked for among all cards, which takes some 10 ms of 8000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """One reason with its count."""

    reason: str
    pods: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLine:
    """One pod, or several that are alike."""

    pod_uid: str
    namespace: str
    name: str
    """Of the one that waits longest."""
    count: int
    asks: str
    size: SliceSize | None
    """What is asked of each card; None: it was not recorded."""
    since: datetime
    last_at: datetime
    attempts: int
    because: str
    reason: str
    ahead: int
    nearest: str = ""
    """The nearest card and what it lacks; empty: not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPage:
    """Everything that the template asks for."""

    total: int
    tabs: Sequence[Tab]
    chosen: str
    lines: Sequence[WaitingLine]
    not_asked: int
    """Pods of `lines` that kube-scheduler has not asked about for longer than `ASKED_WITHIN`."""
    oldest_at: datetime | None


def pending_page(
    reasons: Iterable[Mapping[str, Any]],
    waiting: Iterable[Mapping[str, Any]],
    viewer: PageViewer,
    chosen: str,
    state: PageCluster | None,
    now: datetime,
) -> PendingPage:
    """Of the answers to `pending-reasons` and `waiting-pods`, and the cards of `state`."""
    waiting = list(waiting)
    tabs = sorted(
        (
            Tab(reason=row["reason_code"], pods=row["pod_count"], oldest_at=row["oldest_at"])
            for row in reasons
        ),
        key=lambda tab: (-tab.pods, tab.reason),
    )
    lines: dict[tuple[object, ...], WaitingLine] = {}
    for row in waiting:
        line = _line(row, viewer)
        # Pods of one namespace that ask alike and are refused alike are one line.
        alike = (line.namespace, line.asks, line.because, _stem(line.name))
        first = lines.get(alike)
        lines[alike] = line if first is None else _added(first, line)
    return PendingPage(
        total=sum(tab.pods for tab in tabs),
        tabs=tabs,
        chosen=chosen,
        lines=_with_nearest(list(lines.values()), state),
        not_asked=sum(now - row["last_at"] > ASKED_WITHIN for row in waiting),
        oldest_at=min((tab.oldest_at for tab in tabs), default=None),
    )


def _with_nearest(lines: list[WaitingLine], state: PageCluster | None) -> list[WaitingLine]:
    """Pods that ask alike are looked at once."""
    if state is None:
        return lines
    sizes = list(dict.fromkeys(line.size for line in lines if line.size is not None))
    found = {size: nearest_text(nearest(state, size)) for size in sizes[:MOST_SIZES]}
    return [
        line if line.size not in found else replace(line, nearest=found[line.size])
        for line in lines
    ]


def _line(row: Mapping[str, Any], viewer: PageViewer) -> WaitingLine:
    seen = viewer.sees(row["namespace"])
    return WaitingLine(
        pod_uid=row["pod_uid"] if seen else "",
        namespace=viewer.namespace(row["namespace"]),
        name=row["pod_name"] if seen else "",
        count=1,
        asks=asks(row),
        size=_size(row),
        since=row["since_at"],
        last_at=row["last_at"],
        attempts=row["attempt_count"],
        # The sentence may name a namespace's quota; the code names nobody.
        because=(row["summary"] if seen else "") or row["reason_code"],
        reason=row["reason_code"],
        ahead=row["ahead_count"],
    )


def _added(first: WaitingLine, line: WaitingLine) -> WaitingLine:
    return replace(
        first,
        count=first.count + 1,
        since=min(first.since, line.since),
        last_at=max(first.last_at, line.last_at),
        attempts=max(first.attempts, line.attempts),
        ahead=min(first.ahead, line.ahead),
    )


def _stem(name: str) -> str:
    """What pods of one Job or ReplicaSet have in common: all but the last part."""
    return name.rpartition("-")[0] or name


def _size(row: Mapping[str, Any]) -> SliceSize | None:
    if not row["card_count"]:
        return None
    memory = row["memory_bytes"]
    return SliceSize(
        count=row["card_count"],
        memory_mib=None if memory is None else memory // _MIB,
        memory_ratio=row["memory_ratio"],
        core_percent=round(100 * (row["core_ratio"] or 0)),
    )


def asks(row: Mapping[str, Any]) -> str:
    """`1 x 40 GiB 30 %`; what was not recorded is `?`."""
    if row["card_count"] is None:
        return "?"
    parts = [f"{row['card_count']} x"]
    if row["memory_bytes"] is not None:
        parts.append(gib(row["memory_bytes"] / _MIB))
    elif row["memory_ratio"] is not None:
        parts.append(f"{row['memory_ratio']:.0%} of its memory".replace("%", " %"))
    else:
        parts.append("card")
    if row["core_ratio"] == 0:
        parts.append("any cores")
    elif row["core_ratio"]:
        parts.append(f"{100 * row['core_ratio']:.0f} % cores")
    return " ".join(parts)
