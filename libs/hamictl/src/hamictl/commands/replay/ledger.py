"""`hamictl dump`: write the ledger's history of pods and cards as JSON lines for a replay.

The command only reads, as `hami_reader`, at one moment; hosts' CPU comes from the cluster. A pod
arrives at its first decision or grant, and ends at the end of its last grant. Its request comes
from its decisions; if those are gone already (`HAMI_SCHEDULER_DECISION_DAYS`), its grant replaces
it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any

import asyncpg
import orjson
import typer
from hamicommon import device_config as deviceconfig
from hamicommon.clipping import clip
from hamicommon.domain.devices import GpuDevice, MigProfile
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import (
    ContainerRequest,
    DeviceRequest,
    HostRequest,
    PodRequest,
    Role,
)
from hamicommon.errors import HamiError, InvalidRequest, Unavailable
from hamicommon.explain.record import request_of
from hamicommon.k8s.client import open_kube_api
from hamicommon.k8s.quantities import parse_ceil, parse_milli
from hamicommon.vendors.registry import Vendors
from hamireplay.history import (
    NodeLine,
    Period,
    PodHistory,
    PodLine,
    encode_lines,
    nodes_with_cards,
    read_history,
)
from hamireplay.openb import read_nodes
from hamireplay.trace import TraceNode

from hamictl.commands.query import SQL_TIMEOUT_S, ledger_reader
from hamictl.commands.runner import run, spoken_errors
from hamictl.exit_codes import WrongUsage
from hamictl.manifests import read_text
from hamictl.questions import QuestionClient
from hamictl.target import find_target

MAX_PODS = 1_000_000
_DURATION = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_GONE_AFTER = timedelta(minutes=10)
"""Time without a scheduling attempt after which a pod no longer counts as waiting."""
_MIB = 2**20

_PODS = """
WITH held AS (
  SELECT DISTINCT ON (pod_uid) pod_uid, namespace, pod_name, id, reserved_at, ended_at,
         min(reserved_at) OVER (PARTITION BY pod_uid) AS first_at
    FROM allocations
   WHERE reserved_at < $2 AND (ended_at IS NULL OR ended_at > $1)
   ORDER BY pod_uid, attempt DESC
), decided AS (
  SELECT pod_uid, min(at) AS first_at, max(last_at) AS last_at, max(namespace) AS namespace,
         max(pod_name) AS pod_name
    FROM decisions WHERE at > $1 AND at <= $2 AND outcome <> 'error' AND pod_name <> ''
   GROUP BY pod_uid
)
SELECT coalesce(h.pod_uid, d.pod_uid) AS pod_uid,
       coalesce(h.namespace, d.namespace) AS namespace,
       coalesce(h.pod_name, d.pod_name) AS pod_name,
       least(h.first_at, d.first_at) AS first_at, d.last_at, h.reserved_at, h.ended_at,
       asked.request, asked.policy, got.containers
  FROM held h FULL JOIN decided d USING (pod_uid)
  LEFT JOIN LATERAL (
       SELECT request, policy FROM decisions
        WHERE pod_uid = coalesce(h.pod_uid, d.pod_uid) AND request ? 'containers'
        ORDER BY at DESC LIMIT 1) asked ON true
  LEFT JOIN LATERAL (
       SELECT jsonb_agg(jsonb_build_array(container_index, container_name,
                                          CASE WHEN sidecar THEN 'sidecar' ELSE role END, vendor,
                                          memory_mib, core_percent)
                        ORDER BY container_index, position) AS containers
         FROM allocation_devices WHERE allocation_id = h.id AND asked.request IS NULL) got ON true
 ORDER BY 4 LIMIT $3
"""
_CARDS = """
SELECT d.node, d.uuid, d.index, d.vendor, d.type, d.slots, d.memory_mib, d.core_percent, d.numa,
       d.mode, d.mig_profiles, d.info, n.pair_scores
  FROM devices d JOIN nodes n ON n.name = d.node
 WHERE d.present AND n.gone_at IS NULL ORDER BY d.node, d.index, d.uuid
"""


async def history_lines(since_s: float) -> list[Period | NodeLine | PodLine]:
    """Return the last `since_s` seconds of history, and the present cards.

    Raises: Unavailable if the ledger does not answer; InvalidRequest if too many pods arrived.
    """
    hosts = await _hosts()
    async with ledger_reader() as connection:
        until = await connection.fetchval("SELECT now()")
        since = until - timedelta(seconds=since_s)
        pods = await connection.fetch(_PODS, since, until, MAX_PODS + 1, timeout=SQL_TIMEOUT_S)
        cards = await connection.fetch(_CARDS, timeout=SQL_TIMEOUT_S)
    if len(pods) > MAX_PODS:
        raise InvalidRequest(
            f"more than {MAX_PODS} pods arrived in this time: use a shorter --since"
        )
    lines = [line for row in pods if (line := _pod(row, since, until)) is not None]
    period = Period(since=since, until=until, cluster=await _cluster_name())
    return [period, *_nodes(cards, hosts), *lines]


async def _cluster_name() -> str:
    """Return the cluster's name from the metrics service; empty if unknown."""
    target = find_target()
    if not target.metrics.url:
        return ""
    try:
        return await QuestionClient(target).cluster_name()
    except HamiError:
        return ""


async def _hosts() -> Mapping[str, tuple[int | None, int | None]]:
    """Return allocatable CPU (milli) and memory (MiB) by node; empty if no cluster is known."""
    kubeconfig = find_target().kubeconfig
    if kubeconfig is None:
        return {}
    try:
        async with open_kube_api(kubeconfig) as api:
            nodes = (await api.get("/api/v1/nodes"))["items"]
    except Unavailable:
        return {}
    return {node["metadata"]["name"]: _host(node) for node in nodes}


def _host(node: Mapping[str, Any]) -> tuple[int | None, int | None]:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    try:
        cpu = parse_milli(allocatable["cpu"]) if "cpu" in allocatable else None
        memory = parse_ceil(allocatable["memory"]) // _MIB if "memory" in allocatable else None
    except InvalidRequest:
        return None, None
    return cpu, memory


def _nodes(
    cards: list[asyncpg.Record], hosts: Mapping[str, tuple[int | None, int | None]]
) -> Iterator[NodeLine]:
    by_node: dict[str, list[asyncpg.Record]] = {}
    for row in cards:
        by_node.setdefault(row["node"], []).append(row)
    for name, rows in by_node.items():
        cpu, memory = hosts.get(name, (None, None))
        yield NodeLine(
            name=name,
            cpu_milli=cpu,
            memory_mib=memory,
            cards=tuple(map(_card, rows)),
            pair_scores=orjson.loads(rows[0]["pair_scores"]),
        )


def _card(row: asyncpg.Record) -> GpuDevice:
    plain = ("index", "vendor", "type", "slots", "memory_mib", "core_percent", "numa", "mode")
    return GpuDevice(
        uuid=GpuUuid(row["uuid"]),
        mig_profiles=tuple(
            MigProfile(**{**item, "placements": tuple(map(tuple, item["placements"]))})
            for item in orjson.loads(row["mig_profiles"])
        ),
        info=orjson.loads(row["info"]),
        **{name: row[name] for name in plain},
    )


def _pod(row: asyncpg.Record, since: datetime, until: datetime) -> PodLine | None:
    """Return the pod's line; None if it asked for no card, as far as known."""
    request = _request(row)
    if request is None or not request.wants_devices:
        return None
    arrived = _seconds(row["first_at"], since)
    started = None if row["reserved_at"] is None else max(_seconds(row["reserved_at"], since), 0.0)
    gone = None
    if started is None and row["last_at"] < until - _GONE_AFTER:
        gone = _seconds(row["last_at"], since)
    return PodLine(
        uid=row["pod_uid"],
        namespace=row["namespace"],
        name=row["pod_name"],
        arrived_s=arrived,
        started_s=started,
        ended_s=None if row["ended_at"] is None else _seconds(row["ended_at"], since),
        gone_s=gone,
        containers=request.containers,
        selections=request.selections,
        host=request.host,
        granted_only=row["request"] is None,
    )


def _request(row: asyncpg.Record) -> PodRequest | None:
    if row["request"] is not None:
        stored = {name: orjson.loads(row[name]) for name in ("request", "policy")}
        return request_of({**row, **stored})
    by_container: dict[tuple[int, str, Role], list[tuple[str, int, int]]] = {}
    for index, name, role, vendor, memory, core in orjson.loads(row["containers"] or "[]"):
        by_container.setdefault((index, name, role), []).append((vendor, memory, core))
    return PodRequest(
        uid=row["pod_uid"],
        namespace=row["namespace"],
        name=row["pod_name"],
        containers=tuple(
            ContainerRequest(name=name, role=role, requests=tuple(_device_requests(shares)))
            for (_, name, role), shares in by_container.items()
        ),
        host=HostRequest(),
    )


def _device_requests(shares: list[tuple[str, int, int]]) -> Iterator[DeviceRequest]:
    for kind in dict.fromkeys(shares):
        vendor, memory, core = kind
        yield DeviceRequest(
            vendor=vendor, count=shares.count(kind), memory_mib=memory, core_percent=core
        )


def _seconds(at: datetime, since: datetime) -> float:
    return max(round((at - since).total_seconds(), 3), 0.0)


LEDGER, LIVE = "ledger", "live"
"""Values of --from and --nodes that stand for the ledger, and for its present cards."""

Since = Annotated[
    str, typer.Option("--since", help="start of the history, such as 30d (30 days ago)")
]


def dump(since: Since = "30d") -> None:
    """Write the ledger's pods and cards as JSON lines, for hamictl replay --from."""
    with spoken_errors():
        length_s = seconds_of(since, "--since")
    for line in encode_lines(run(history_lines(length_s))):
        print(line)  # noqa: T201 (this is the user's file)


def seconds_of(text: str, option: str) -> float:
    """Parse `90s`, `30m`, `6h` or `30d`.

    Raises: WrongUsage with the option, the text and the expected form.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or not int(match[1]):
        raise WrongUsage(
            f"{option} is {clip(text)!r}: use a number above 0 with s, m, h or d, such as 6h"
        )
    return float(int(match[1]) * _SECONDS[match[2]])


def history_of(source: str, since: str) -> PodHistory:
    """Read the history of a dump, or of the ledger.

    Raises: InvalidRequest, Unavailable.
    """
    vendors = Vendors.from_config(deviceconfig.load(None), enable_ascend=True, enable_iluvatar=True)
    if source == LEDGER:
        lines = run(history_lines(seconds_of(since or "30d", "--since")))
        return read_history("\n".join(encode_lines(lines)), LEDGER, vendors.rules)
    if since:
        raise WrongUsage("use --since only with --from ledger: a dump has its own period")
    return read_history(read_text(source), source, vendors.rules)


def nodes_of(source: str) -> list[TraceNode]:
    """Read the nodes of a CSV, or those of the ledger.

    Raises: InvalidRequest, Unavailable.
    """
    if source != LIVE:
        return read_nodes(read_text(source), nodes_file=source)
    return nodes_with_cards(run(history_lines(1.0)), LEDGER)
