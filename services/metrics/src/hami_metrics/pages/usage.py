"""Data `/usage.json`: used and granted amounts over time, for charts of each kind of object.

Used is the sum over the measured cards (of a pod or namespace: its slices), from means of five
minutes or an hour, with the newest samples as the last point; a period without a measurement is
null. Granted is the amount that the ledger had granted at that moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import orjson
from fastapi import APIRouter, Request, Response
from hamicommon.errors import InvalidRequest, NotFound
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.footprint import footprint

from hami_metrics.pages.cluster import PageCluster, Row
from hami_metrics.pages.readings import BUCKET_S, MIB, read_use
from hami_metrics.pages.rendering import HEADERS
from hami_metrics.pages.site import PageRequest, Site, choice_of, state_of, text_of

WINDOW_HOURS = {"1h": 1, "6h": 6, "24h": 24, "7d": 168, "30d": 720}
HOUR_S = 3600
MAX_FINE_HOURS = 24
"""Maximum window drawn from five-minute sums; longer ones are drawn from hourly means."""
MAX_FINE_NODES = 100
"""Number of nodes above which the cluster's chart uses only one bucket in three."""
USE_TTL = timedelta(minutes=2)
"""Age from which a sample is left out of a chart's last point.

The feed reads samples of the last 90 s, twice a minute.
"""
KINDS = ("node", "pod", "namespace", "card")
MIB_PER_GIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Object of a chart; all fields empty: the whole cluster."""

    node: str = ""
    card: str = ""
    pod: str = ""
    namespace: str = ""

    def values(self) -> list[str]:
        """Return the fields that are not empty, in the order of `KINDS`."""
        return [value for kind in KINDS if (value := getattr(self, kind))]

    @property
    def is_one(self) -> bool:
        """Whether the chart is of one card or pod: one unknown part makes its sum unknown."""
        return bool(self.card or self.pod)

    @property
    def of_slices(self) -> bool:
        """Return whether slices are measured, not whole cards."""
        return bool(self.pod or self.namespace)


# One bucket is one probe of the index: a range would read those of all nodes.
_USED = f"""
SELECT bucket_start AS at,
       CASE WHEN NOT $3 OR count(memory_used_sum_bytes) = count(*)
            THEN sum(memory_used_sum_bytes / sample_count) / {MIB} END AS memory_mib,
       CASE WHEN NOT $3 OR count(core_percent_sum) = count(*)
            THEN sum(core_percent_sum / sample_count) END AS core_percent
  FROM usage_rollups WHERE bucket_start = ANY($1::timestamptz[]) AND bucket_s = $2
"""
_GRANT_COLUMNS = {"node": "node", "pod": "pod_uid", "namespace": "namespace"}
_USED_COLUMNS = {**_GRANT_COLUMNS, "card": "device_uuid"}
# A grant begins and ends once, so the changes of its span, summed up, are the amounts at each step.
_GRANTED = """
WITH grants AS (
    SELECT id, reserved_at, ended_at FROM allocations
     WHERE ended_at IS NULL AND reserved_at <= $2 {{grants}}
    UNION ALL
    SELECT id, reserved_at, ended_at FROM allocations
     WHERE ended_at IS NOT NULL AND hami_held(reserved_at, ended_at) && tstzrange($1, $2) {{grants}}
), held AS (
    SELECT g.reserved_at, g.ended_at, {memory_mib} AS memory_mib, {core_percent} AS core_percent
      FROM grants g JOIN allocation_devices x ON x.allocation_id = g.id {{cards}}
     GROUP BY g.id, g.reserved_at, g.ended_at, x.device_uuid
), changes AS (
    SELECT greatest(reserved_at, $1) AS at, memory_mib, core_percent FROM held
    UNION ALL
    SELECT ended_at, -memory_mib, -core_percent FROM held WHERE ended_at <= $2
)
SELECT ceil(extract(epoch FROM at - $1) / $3)::int AS place, sum(memory_mib)::float8 AS memory_mib,
       sum(core_percent)::float8 AS core_percent
  FROM changes GROUP BY place ORDER BY place
""".format(memory_mib=footprint("memory_mib"), core_percent=footprint("core_percent"))
_FIRST_RECORD = "SELECT at FROM allocation_events ORDER BY id LIMIT 1"
_NODE_OF_CARD = "SELECT node FROM devices WHERE uuid = $1"
_POD = """
SELECT namespace, node FROM allocations WHERE pod_uid = $1 ORDER BY attempt DESC LIMIT 1
"""


def chart_times(until: datetime, hours: int, step_s: int) -> list[datetime]:
    """Return the starts of the window's finished buckets, the oldest first."""
    end = int(until.timestamp()) // step_s * step_s
    count = hours * HOUR_S // step_s
    return [datetime.fromtimestamp(end - step_s * n, UTC) for n in range(count, 0, -1)]


def chart(
    times: Sequence[datetime],
    used: Sequence[Row],
    granted: Sequence[Row],
    last: tuple[datetime, float | None, float | None],
    first_record: datetime | None,
) -> dict[str, object]:
    """Return the series of a chart; None is a gap.

    Args:
        times: beginnings of the buckets.
        used: means of those buckets that were measured.
        granted: changes of the granted amounts, by the position in `times` from which they hold.
        last: the displayed moment, with memory and cores of its newest samples.
        first_record: grants before it are unknown; None: nothing is recorded.
    """
    by_time: Mapping[datetime, Row] = {row["at"]: row for row in used}
    moments = [*times, last[0]]
    known_from = last[0] if first_record is None else first_record
    series: dict[str, object] = {"at": [int(moment.timestamp()) for moment in moments]}
    for name, newest, unit in (("memory_mib", last[1], MIB_PER_GIB), ("core_percent", last[2], 1)):
        means = [by_time[at][name] if at in by_time else None for at in times]
        amounts, held, rest = [], 0.0, list(granted)
        for place, moment in enumerate(moments):
            while rest and (rest[0]["place"] <= place or place == len(times)):
                held += rest.pop(0)[name]
            amounts.append(held if moment >= known_from else None)
        series["memory" if unit > 1 else "cores"] = {
            "used": [None if one is None else round(one / unit, 2) for one in [*means, newest]],
            "granted": [None if one is None else round(one / unit, 2) for one in amounts],
        }
    return series


def routes(site: Site) -> APIRouter:
    """Serve the series of all charts."""
    router = APIRouter()

    @router.get("/usage.json")
    async def usage(request: Request) -> Response:
        asked = await site.open_request(request)
        hours = WINDOW_HOURS[choice_of(request, "window", WINDOW_HOURS, "6h")]
        given = {kind: text for kind in KINDS if (text := text_of(request, kind))}
        if len(given) > 1:
            raise InvalidRequest(f"{' and '.join(given)}: a chart shows one of them; give only one")
        subject, asked = await _subject(site, asked, request, given)
        data = await _read(site, asked, subject, hours)
        return Response(orjson.dumps(data), media_type="application/json", headers=HEADERS)

    return router


async def _subject(
    site: Site, asked: PageRequest, request: Request, given: Mapping[str, str]
) -> tuple[Subject, PageRequest]:
    """Find the object's node. Raises: NotFound, also if the viewer may not see it."""
    subject = Subject(**given)
    if subject.card:
        async with site.ledger.look() as connection:
            node = await connection.fetchval(_NODE_OF_CARD, subject.card)
        if node is None:
            raise NotFound(f"the ledger has no card {subject.card!r}")
        return Subject(card=subject.card, node=node), asked
    namespace = subject.namespace
    if subject.pod:
        async with site.ledger.look() as connection:
            row = await connection.fetchrow(_POD, subject.pod)
        subject = Subject(pod=subject.pod, node="" if row is None else row["node"])
        namespace = "" if row is None else row["namespace"]
    if namespace:
        asked = await site.review_names(asked, request, [namespace])
    if subject.of_slices and (not namespace or not asked.viewer.sees(namespace)):
        raise NotFound("the ledger has no such pod or namespace, or you may not see it")
    return subject, asked


async def _read(site: Site, asked: PageRequest, subject: Subject, hours: int) -> dict[str, object]:
    state, at = state_of(asked), asked.moment.shown
    bucket_s = BUCKET_S if hours <= MAX_FINE_HOURS else HOUR_S
    is_whole = subject == Subject()
    thinned = is_whole and bucket_s == BUCKET_S and len(state.nodes) > MAX_FINE_NODES
    step_s = bucket_s * (3 if thinned else 1)
    times = chart_times(at, hours, step_s)
    async with site.ledger.look() as connection:
        used = await connection.fetch(
            _used_statement(subject), times, bucket_s, subject.is_one, *subject.values()
        )
        granted = await connection.fetch(
            _granted_statement(subject), times[0], at, float(step_s), *subject.values()
        )
        first_record = await connection.fetchval(_FIRST_RECORD)
        last = await _newest(connection, state, subject, at)
    return chart(times, used, granted, (at, *last), first_record)


def _conditions(subject: Subject, columns: Mapping[str, str], first: int) -> str:
    """Return SQL conditions on these columns, with parameters from number `first`."""
    given = [column for kind, column in columns.items() if getattr(subject, kind)]
    return "".join(f" AND {column} = ${number}" for number, column in enumerate(given, first))


def _used_statement(subject: Subject) -> str:
    conditions = _conditions(subject, _USED_COLUMNS, 4)
    if not subject.pod:
        conditions += " AND pod_uid <> ''" if subject.namespace else " AND pod_uid = ''"
    return f"{_USED} {conditions} GROUP BY bucket_start"


def _granted_statement(subject: Subject) -> str:
    grants = _conditions(subject, _GRANT_COLUMNS, 4)
    # Parameters are numbered in the order of `KINDS`, which has the card last.
    cards = _conditions(subject, {"card": "x.device_uuid"}, 4 + grants.count("$"))
    return _GRANTED.format(grants=grants, cards=cards)


async def _newest(
    connection: Connection, state: PageCluster, subject: Subject, at: datetime
) -> tuple[float | None, float | None]:
    """Return memory and cores from the newest samples; sums are of measured parts."""
    if subject.of_slices:
        holders = [
            (card.node, one.pod_uid)
            for card in state.cards()
            for one in card.holders
            if one.pod_uid == subject.pod or one.namespace == subject.namespace
        ]
        nodes, uids = sorted({node for node, _ in holders}), sorted({uid for _, uid in holders})
        rows = await read_use(connection, nodes, at, uids=uids) if uids else []
        measured = [(row["memory_mib"], row["core_percent"]) for row in rows]
    else:
        measured = [
            (use.memory_mib, use.core_percent)
            for card in state.cards()
            if (use := state.use.get(card.uuid)) is not None
            and at - use.at < USE_TTL
            and subject.node in ("", card.node)
            and subject.card in ("", card.uuid)
        ]
    return (
        _total([mib for mib, _ in measured], strict=subject.is_one),
        _total([percent for _, percent in measured], strict=subject.is_one),
    )


def _total(values: Sequence[float | None], *, strict: bool) -> float | None:
    known = [value for value in values if value is not None]
    return None if not known or (strict and len(known) < len(values)) else sum(known)
