"""Read and write a cluster's history as JSON lines: its cards, and its pods with their times.

The first line is the period, then one line for each node and each pod, in any order. Times are
seconds since the period began; a pod that was there already arrived at 0. `hamictl dump` writes it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

import orjson
from hamicommon.clipping import clip
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import (
    ContainerRequest,
    DeviceRequest,
    HostRequest,
    PodRequest,
    Selection,
)
from hamicommon.errors import InvalidRequest
from hamicommon.placement.cluster.view import UNLIMITED_CPU
from hamicommon.placement.vendor_policy import VendorRules
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hamireplay.trace import WHOLE_CARD_MILLI, Trace, TraceNode, TracePod, usual_card_memory

_MAX = 2**40
_MAX_CARDS = 1024
"""Maximum number of cards of a pod, or of a node."""

Seconds = Annotated[float, Field(ge=0, le=2**40, allow_inf_nan=False)]
Amount = Annotated[int, Field(ge=0, le=_MAX)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Period(_Line):
    """First line of a history."""

    kind: Literal["history"] = "history"
    version: Literal[1] = 1
    since: AwareDatetime
    until: AwareDatetime
    cluster: str = ""
    """Name of the cluster; empty: none, or the metrics service did not answer."""


class NodeLine(_Line):
    """One node with its cards."""

    kind: Literal["node"] = "node"
    name: Annotated[str, Field(min_length=1, max_length=253)]
    cpu_milli: Amount | None = None
    """CPU that pods may request of the host; None: unknown, and then unlimited."""
    memory_mib: Amount | None = None
    cards: Annotated[tuple[GpuDevice, ...], Field(max_length=_MAX_CARDS)]
    pair_scores: dict[GpuUuid, dict[GpuUuid, int]] = Field(default_factory=dict)


class PodLine(_Line):
    """One pod that asked for cards."""

    kind: Literal["pod"] = "pod"
    uid: str
    namespace: str
    name: str
    arrived_s: Seconds
    started_s: Seconds | None = None
    """Time at which it got its cards; None: never."""
    ended_s: Seconds | None = None
    """Time at which it ended; None: it was still running."""
    gone_s: Seconds | None = None
    """Time of the last attempt to place a pod that got no cards; None: it still waits."""
    containers: Annotated[tuple[ContainerRequest, ...], Field(min_length=1, max_length=1000)]
    selections: dict[str, Selection] = Field(default_factory=dict)
    host: HostRequest = HostRequest()
    granted_only: bool = False
    """Whether only the granted amounts are known, not the request."""


_LINE: TypeAdapter[Period | NodeLine | PodLine] = TypeAdapter(
    Annotated[Period | NodeLine | PodLine, Field(discriminator="kind")]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHistory:
    """Result of `read_history`."""

    trace: Trace
    since: datetime
    until: datetime
    granted_only: int
    """Number of pods of which only the granted amounts are known."""
    without_host: int
    """Number of nodes whose CPU is unknown."""

    @property
    def length_s(self) -> float:
        """Return the length of the period in seconds."""
        return (self.until - self.since).total_seconds()


def encode_lines(lines: Iterable[Period | NodeLine | PodLine]) -> Iterator[str]:
    """Return each line as JSON, without a line break."""
    for line in lines:
        unnamed = isinstance(line, Period) and not line.cluster
        yield _LINE.dump_json(line, exclude={"cluster"} if unnamed else None).decode()


def read_history(
    text: str, source: str, rules: Mapping[str, VendorRules] | None = None
) -> PodHistory:
    """Read a history as a trace; `rules` are those of the vendors.

    Raises: InvalidRequest naming the file, the line, the field and what would be right.
    """
    period: Period | None = None
    nodes: dict[str, TraceNode] = {}
    pods: dict[str, PodLine] = {}
    uuids: set[GpuUuid] = set()
    known_host = 0
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{source} line {number}"
        if not line.strip():
            continue
        found = _read(line, where)
        if isinstance(found, Period) != (period is None):
            raise InvalidRequest(f"{where}: expected one first line of kind history")
        if isinstance(found, Period):
            period = found
        elif isinstance(found, NodeLine):
            _once(found.name, nodes, where, "node")
            nodes[found.name] = _node(found, where, uuids)
            known_host += found.cpu_milli is not None
        else:
            _once(found.uid, pods, where, "pod")
            pods[found.uid] = _check_pod(found, where)
    if period is None or period.until <= period.since:
        raise InvalidRequest(
            f"{source}: expected a first line of kind history with since before until, as "
            "hamictl dump writes it"
        )
    with_cards = [node for node in nodes.values() if node.cards]
    if not with_cards or not pods:
        lacking = "pod" if with_cards else "node with a card"
        raise InvalidRequest(f"{source} has no {lacking}: there is nothing to replay")
    card_memory = usual_card_memory(with_cards)
    trace = Trace(
        nodes=with_cards,
        pods=[_pod(line, card_memory) for line in pods.values()],
        rules=rules,
    )
    return PodHistory(
        trace=trace,
        since=period.since,
        until=period.until,
        granted_only=sum(line.granted_only for line in pods.values()),
        without_host=len(nodes) - known_host,
    )


def nodes_with_cards(lines: Iterable[Period | NodeLine | PodLine], source: str) -> list[TraceNode]:
    """Yield nodes with cards before they are written. Raises: InvalidRequest if there are none."""
    uuids: set[GpuUuid] = set()
    found = [_node(line, source, uuids) for line in lines if isinstance(line, NodeLine)]
    with_cards = [node for node in found if node.cards]
    if not with_cards:
        raise InvalidRequest(f"{source} has no node with a card")
    return with_cards


def _read(line: str, where: str) -> Period | NodeLine | PodLine:
    try:
        return _LINE.validate_python(orjson.loads(line))
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"{where}: not JSON: {exc.msg}") from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{where}: {clip(field or 'the line')}: {first['msg']}") from exc


def _once(name: str, known: Container[str], where: str, kind: str) -> None:
    if name in known:
        raise InvalidRequest(f"{where}: {kind} {clip(name)} appears twice: expected once")


def _node(line: NodeLine, where: str, uuids: set[GpuUuid]) -> TraceNode:
    for card in line.cards:
        amounts = card.slots, card.memory_mib, card.core_percent
        if any(not 0 <= amount <= _MAX for amount in amounts):
            raise InvalidRequest(f"{where}: card {clip(card.uuid)}: slots, memory or cores below 0")
        _once(card.uuid, uuids, where, "card")
        uuids.add(card.uuid)
    largest = max(line.cards, key=lambda card: card.memory_mib, default=None)
    return TraceNode(
        name=NodeName(line.name),
        cpu_milli=UNLIMITED_CPU if line.cpu_milli is None else line.cpu_milli,
        memory_mib=_MAX if line.memory_mib is None else line.memory_mib,
        cards=len(line.cards),
        model="" if largest is None else largest.type,
        card_memory_mib=0 if largest is None else largest.memory_mib,
        devices=line.cards,
        pair_scores=line.pair_scores,
    )


def _check_pod(line: PodLine, where: str) -> PodLine:
    known = [at for at in (line.arrived_s, line.started_s, line.ended_s) if at is not None]
    if known != sorted(known) or (line.gone_s is not None and line.gone_s < line.arrived_s):
        raise InvalidRequest(
            f"{where}: pod {clip(line.name)}: expected arrived_s, started_s and ended_s "
            "(or gone_s) in this order"
        )
    wanted = [one for container in line.containers for one in container.requests]
    if not wanted:
        raise InvalidRequest(f"{where}: pod {clip(line.name)} asks for no card")
    for one in wanted:
        amounts = one.memory_mib, one.core_percent
        percent = one.memory_percent or 0
        if (
            not 1 <= one.count <= _MAX_CARDS
            or not 0 <= percent <= 100
            or any(not 0 <= amount <= _MAX for amount in amounts)
        ):
            raise InvalidRequest(
                f"{where}: pod {clip(line.name)}: expected 1 to {_MAX_CARDS} cards, with "
                "memory and cores not below 0"
            )
    return line


def _pod(line: PodLine, card_memory_mib: int) -> TracePod:
    """Convert a pod, with its number of cards and the mean amounts per card."""
    sidecars: list[DeviceRequest] = []
    together: list[DeviceRequest] = []
    initial: list[list[DeviceRequest]] = []
    for container in line.containers:
        if container.role == "init":
            initial.append([*sidecars, *container.requests])
            continue
        together += container.requests
        if container.role == "sidecar":
            sidecars += container.requests
    wanted = max((together, *initial), key=_card_count)
    cards = _card_count(wanted)
    milli = sum(one.count * _milli(one, card_memory_mib) for one in wanted)
    return TracePod(
        name=f"{line.namespace}/{line.name}",
        cpu_milli=line.host.cpu_milli,
        memory_mib=line.host.memory_mib,
        cards=cards,
        card_milli=-(-milli // cards),
        arrives_s=line.arrived_s,
        starts_s=line.started_s,
        ends_s=line.ended_s,
        gone_s=line.gone_s,
        ran=line.started_s is not None,
        request=PodRequest(
            uid=PodUid(line.uid),
            namespace=line.namespace,
            name=line.name,
            containers=line.containers,
            selections=line.selections,
            host=line.host,
        ),
    )


def _card_count(wanted: Iterable[DeviceRequest]) -> int:
    return sum(one.count for one in wanted)


def _milli(wanted: DeviceRequest, card_memory_mib: int) -> int:
    """Return the larger share of cores and memory, in thousandths of a usual card."""
    memory = wanted.memory_mib_on(card_memory_mib) / card_memory_mib if card_memory_mib else 0.0
    share = max(wanted.core_percent / 100, memory)
    return min(max(round(share * WHOLE_CARD_MILLI), 1), WHOLE_CARD_MILLI)
