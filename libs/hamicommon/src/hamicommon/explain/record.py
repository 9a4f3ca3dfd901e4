"""Encode and decode stored decisions, with the cards on which each was made.

In: what /filter answered, and `placement.view.Frozen`; out: blobs, bytes for
`decisions.shortfalls`, and `DecisionRecord`, which `answer.py` explains.
Rarely changing content (nodes and their cards: the inventory) is one blob. What changes with every
grant (counters) is JSON that a refusal keeps as another blob and a placement with its own record.
A blob is named by a digest of its content, so that refusals of one moment, and all decisions on one
inventory, share theirs. `thaw` makes a view of both, and the engine can be asked again.
A reason is written once, with the number of the nodes that gave it: of thousands of nodes few have
one of their own.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import TypeAdapter

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import ContainerRequest, HostRequest, PodRequest, Policy, Selection
from hamicommon.placement.cluster.view import CardState, ClusterView, Frozen
from hamicommon.placement.node_scores import MAX_PARTS, NodeScores, StrandedParts
from hamicommon.placement.rules import NODE_UNREGISTERED

FAST = 1
"""zlib level for records: a third of level 6's time, for a tenth more bytes."""

_DEVICES = TypeAdapter(tuple[GpuDevice, ...])


class Blob(NamedTuple):
    """Compressed bytes, named by a digest of their content."""

    id: str
    content: bytes


@dataclass(frozen=True)
class Moment:
    """Inventory of a view at one moment, and the counters of some nodes' cards."""

    inventory: Blob
    counters_json: bytes
    nodes: tuple[NodeName, ...]
    """Nodes whose counters are included, in their order."""

    @cached_property
    def counters(self) -> Blob:
        """Return the counters as a blob, compressed once for all refusals at this moment."""
        return _pack(self.counters_json)


class MomentEncoder:
    """Encoder of moments that reuses unchanged parts. Not thread safe."""

    def __init__(self) -> None:
        self._cards: dict[NodeName, tuple[tuple[GpuDevice, ...], bytes]] = {}
        self._inventory: tuple[int, Blob] | None = None
        self._latest: tuple[Frozen, Moment] | None = None
        self._positions: tuple[tuple[NodeName, ...], npt.NDArray[np.int64]] | None = None

    def encode(self, frozen: Frozen) -> Moment:
        """Encode a view's state as blobs; nodes are sorted, so that replicas agree on digests."""
        if self._latest is None or self._latest[0] is not frozen:
            inventory = self._inventory_of(frozen)
            nodes, counters = _counters(frozen, self._positions_of(frozen.names))
            text = _json({"inventory": inventory.id, **counters})
            self._latest = (frozen, Moment(inventory, text, nodes))
        return self._latest[1]

    def _inventory_of(self, frozen: Frozen) -> Blob:
        if self._inventory is None or self._inventory[0] != frozen.inventory_version:
            parts = [
                self._node(name, usages)
                for name, usages in sorted(zip(frozen.names, frozen.usages, strict=True))
            ]
            self._inventory = (frozen.inventory_version, _pack(b"[" + b",".join(parts) + b"]"))
        return self._inventory[1]

    def _positions_of(self, names: tuple[NodeName, ...]) -> npt.NDArray[np.int64]:
        """Return the order of the nodes by name; computed only when nodes come or go."""
        if self._positions is None or self._positions[0] != names:
            positions = np.empty(len(names), np.int64)
            positions[np.argsort(np.array(names))] = np.arange(len(names))
            self._positions = (names, positions)
        return self._positions[1]

    def _node(self, name: NodeName, usages: Sequence[DeviceUsage]) -> bytes:
        devices = tuple(usage.device for usage in usages)
        known = self._cards.get(name)
        if known is None or known[0] != devices:
            known = self._cards[name] = (devices, orjson.dumps({"node": name, "cards": devices}))
        return known[1]


def blob_of(value: object) -> Blob:
    """Return the value as compressed JSON, named by its digest."""
    return _pack(_json(value))


def unpack(content: bytes) -> Any:
    """Decode the JSON of a blob."""
    return orjson.loads(zlib.decompress(content))


def thaw(
    inventory: Sequence[Any], counters: Mapping[str, Any], new_view: Callable[[], ClusterView]
) -> ClusterView:
    """Return a view of the nodes with counters as it was then; `new_view` makes an empty view.

    `inventory` and `counters` are the JSON values. Pair scores are not kept: they decide between
    cards that fit, never whether one fits.
    """
    view = new_view()
    at = 0
    for row in counters["nodes"]:
        node = inventory[row]
        states = []
        for device in _DEVICES.validate_python(node["cards"]):
            slots, memory_mib, core_percent = counters["used"][3 * at : 3 * at + 3]
            usage = DeviceUsage(
                device=device,
                used_slots=slots,
                used_memory_mib=memory_mib,
                used_core_percent=core_percent,
                cordoned=str(device.uuid) in counters["cordoned"],
                holdings=tuple(counters["holdings"].get(device.uuid, ())),
            )
            states.append(CardState(usage, 1))
            at += 1
        view.set_node(NodeName(node["node"]), states)
    return view


def _counters(
    frozen: Frozen, positions: npt.NDArray[np.int64]
) -> tuple[tuple[NodeName, ...], dict[str, Any]]:
    by_name: list[int] = positions[np.array(frozen.rows, np.int64)].tolist()
    order = sorted(range(len(by_name)), key=by_name.__getitem__)
    rows = [frozen.rows[at] for at in order]
    used = [
        frozen.used[at, : len(frozen.usages[row])].ravel()
        for at, row in zip(order, rows, strict=True)
    ]
    cards = [usage for row in rows for usage in frozen.usages[row]]
    counters = {
        "nodes": sorted(by_name),
        "used": np.concatenate(used) if used else [],
        "cordoned": [usage.device.uuid for usage in cards if usage.cordoned],
        "holdings": {u.device.uuid: [dict(h) for h in u.holdings] for u in cards if u.holdings},
    }
    return tuple(frozen.names[row] for row in rows), counters


def _json(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY, default=str)


def _pack(text: bytes) -> Blob:
    return Blob(hashlib.blake2b(text, digest_size=16).hexdigest(), zlib.compress(text, FAST))


MAX_SCORES = MAX_PARTS
"""Maximum number of nodes whose scores are kept: the most preferred ones."""
MAX_UNREGISTERED = 20
"""Maximum number of nodes without our cards that are kept by name; others are counted."""

_CONTAINERS = TypeAdapter(tuple[ContainerRequest, ...])
_SELECTIONS = TypeAdapter(dict[str, Selection])
_POLICY = TypeAdapter(Policy)
_HOST = TypeAdapter(HostRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaShort:
    """Quota that refused a pod, in the ledger's units (MiB, percent of cores)."""

    namespace: str
    resource: str
    limit: int
    used: int
    wanted: int
    unit_mib: int = 0
    """MiB in one unit of the resource; 0 when it is cores."""

    @property
    def left(self) -> int:
        """Amount that may still be granted."""
        return max(0, self.limit - self.used)

    @property
    def short(self) -> int:
        """Amount that is missing."""
        return self.wanted - (self.limit - self.used)

    def in_units(self, amount: int) -> str:
        """Format an amount in the unit that quotas and pods use.

        >>> QuotaShort(
        ...     namespace="a", resource="r", limit=0, used=0, wanted=0, unit_mib=256
        ... ).in_units(640)
        '2.5'
        """
        return f"{Decimal(amount) / (self.unit_mib or 1):f}"

    def with_unit(self, amount: int) -> str:
        """Format an amount with its unit, and in MiB if the resource's unit is larger.

        >>> QuotaShort(
        ...     namespace="a", resource="r", limit=0, used=0, wanted=0, unit_mib=256
        ... ).with_unit(640)
        '2.5 (640 MiB)'
        """
        if self.unit_mib <= 1:
            return f"{amount} MiB" if self.unit_mib else str(amount)
        return f"{self.in_units(amount)} ({amount} MiB)"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """One stored decision."""

    request: PodRequest | None
    """Request of the pod; None if the pod could not be read, then `message` has the reason."""
    outcome: str
    """`placed`, `refused` or `error`."""
    node: NodeName | None
    message: str
    summary: str
    candidates: int
    reasons: Mapping[NodeName, str]
    """HAMi's reason for each refused candidate with cards."""
    unregistered: Sequence[NodeName] = ()
    """First ones of the candidates without a card."""
    unregistered_count: int = 0
    scores: Mapping[NodeName, float] = field(default_factory=dict)
    """Scores of the most preferred nodes that fitted, the chosen one last."""
    parts: Mapping[NodeName, StrandedParts] = field(default_factory=dict)
    """Parts of these scores under the node policy `fragmentation`."""
    fitting: int = 0
    """Number of nodes that fitted."""
    quota: QuotaShort | None = None
    view: ClusterView | None = None
    """Cards at the time of the decision, of the nodes that were kept; None if none were."""
    decided_at: datetime
    detail_at: datetime
    """Time of the repeated decision whose cards are kept."""
    last_at: datetime
    repeat_count: int
    view_version: int
    trace_id: str


def detail_bytes(
    *,
    reasons: Mapping[NodeName, str],
    scores: NodeScores,
    quota: QuotaShort | None,
    moment: Moment | None,
    keep_counters: bool,
) -> bytes:
    """Encode the parts of a decision that are not in its shared blobs.

    `keep_counters`: include the counters. A placement changes them, so no other decision shares
    them with it.
    """
    unregistered = [node for node, reason in reasons.items() if reason == NODE_UNREGISTERED]
    texts = {reason: n for n, reason in enumerate(dict.fromkeys(reasons.values()))}
    nodes = () if moment is None else moment.nodes
    by_row = [texts[reasons[node]] if node in reasons else -1 for node in nodes]
    rest = reasons.keys() - set(nodes) - set(unregistered)
    best = reversed(scores.best(MAX_SCORES))
    detail: dict[str, Any] = {
        "texts": list(texts),
        "by_row": by_row,
        "rest": {node: texts[reasons[node]] for node in sorted(rest)},
        # Keys of stored rows.
        "strangers": sorted(unregistered)[:MAX_UNREGISTERED],  # codespell:ignore strangers
        "stranger_count": len(unregistered),  # codespell:ignore stranger
        "scores": [[node, round(score, 4)] for node, score in best],
        "parts": {node: asdict(parts) for node, parts in scores.parts().items()},
        "fitting": len(scores),
        "quota": None if quota is None else asdict(quota),
    }
    if keep_counters and moment is not None:
        detail["counters"] = orjson.Fragment(moment.counters_json)
    return blob_of(detail).content


def record_of(
    row: Mapping[str, Any],
    *,
    inventory: bytes | None,
    counters: bytes | None,
    new_view: Callable[[], ClusterView],
) -> DecisionRecord:
    """Read a row of `decisions` with its blobs; a placement's counters are in the row itself."""
    detail = unpack(row["shortfalls"]) if row["shortfalls"] else {}
    view = None
    reasons: dict[NodeName, str] = {}
    texts = detail.get("texts", [])
    counted = detail.get("counters") if counters is None else unpack(counters)
    if inventory is not None and counted is not None:
        nodes = unpack(inventory)
        view = thaw(nodes, counted, new_view)
        for row_number, text in zip(counted["nodes"], detail.get("by_row", ()), strict=False):
            if text >= 0:
                reasons[NodeName(nodes[row_number]["node"])] = texts[text]
    reasons |= {NodeName(node): texts[text] for node, text in detail.get("rest", {}).items()}
    quota = detail.get("quota")
    return DecisionRecord(
        request=request_of(row),
        outcome=row["outcome"],
        node=row["node"],
        message=row["message"],
        summary=row["summary"],
        candidates=row["candidates"],
        reasons=reasons,
        unregistered=tuple(
            map(NodeName, detail.get("strangers", ()))  # codespell:ignore strangers - stored
        ),
        unregistered_count=detail.get("stranger_count", 0),  # codespell:ignore stranger - stored
        scores={NodeName(node): score for node, score in detail.get("scores", ())},
        parts={
            NodeName(node): StrandedParts(**parts)
            for node, parts in detail.get("parts", {}).items()
        },
        fitting=detail.get("fitting", 0),
        quota=None if quota is None else QuotaShort(**quota),
        view=view,
        decided_at=row["at"],
        detail_at=row["detail_at"],
        last_at=row["last_at"],
        repeat_count=row["repeat_count"],
        view_version=row["view_version"],
        trace_id=row["trace_id"],
    )


def request_json(request: PodRequest) -> dict[str, Any]:
    """Write the pod's request as JSON for `decisions.request`; its policy has its own column."""
    return {
        "containers": [asdict(container) for container in request.containers],
        "selections": {vendor: asdict(one) for vendor, one in request.selections.items()},
        "host": asdict(request.host),
    }


def request_of(row: Mapping[str, Any]) -> PodRequest | None:
    """Read the request of a decision; None if it was not kept."""
    stored = row["request"]
    if "containers" not in stored:
        return None
    return PodRequest(
        uid=PodUid(row["pod_uid"]),
        namespace=row["namespace"],
        name=row["pod_name"],
        containers=_CONTAINERS.validate_python(stored["containers"]),
        selections=_SELECTIONS.validate_python(stored.get("selections", {})),
        policy=_POLICY.validate_python(row["policy"]),
        host=_HOST.validate_python(stored.get("host", {})),
    )
