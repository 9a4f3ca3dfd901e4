"""The cards that a decision was made on, as bytes and back.

In: `placement.view.Frozen`. What rarely changes (nodes and their cards: the inventory) is one blob,
what changes with every grant (counters) is JSON that a refusal keeps as another blob and a
placement with its own record. A blob is named by a digest of its content, so that refusals of one
moment, and all decisions on one inventory, share theirs. `thaw` makes a view of both, and the
engine can be asked again.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import TypeAdapter

from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.placement.cluster.view import CardState, ClusterView, Frozen

FAST = 1
"""zlib's level: 1 takes a third of the time of 6 for a tenth more bytes."""

_DEVICES = TypeAdapter(tuple[GpuDevice, ...])


class Blob(NamedTuple):
    """Compressed content and its name."""

    id: str
    content: bytes


@dataclass(frozen=True)
class Moment:
    """One moment of a view: its inventory, and the counters of some nodes."""

    inventory: Blob
    counters_json: bytes
    nodes: tuple[NodeName, ...]
    """Nodes of the counters, in their order."""

    @cached_property
    def counters(self) -> Blob:
        """The counters as a blob, packed once for all refusals of this moment."""
        return _packed(self.counters_json)


class MomentEncoder:
    """Encodes moments; what is as it was the last time is not encoded again. Not thread safe."""

    def __init__(self) -> None:
        self._cards: dict[NodeName, tuple[tuple[GpuDevice, ...], bytes]] = {}
        self._inventory: tuple[int, Blob] | None = None
        self._latest: tuple[Frozen, Moment] | None = None
        self._positions: tuple[tuple[NodeName, ...], npt.NDArray[np.int64]] | None = None

    def encode(self, frozen: Frozen) -> Moment:
        """The blobs; nodes are ordered by name, so that replicas agree on the digests."""
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
            self._inventory = (frozen.inventory_version, _packed(b"[" + b",".join(parts) + b"]"))
        return self._inventory[1]

    def _positions_of(self, names: tuple[NodeName, ...]) -> npt.NDArray[np.int64]:
        """Of each node in the order of names: sorted when nodes came or went, not per decision."""
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
    """JSON, compressed and named."""
    return _packed(_json(value))


def unpacked(content: bytes) -> Any:
    """The JSON value of a blob's content."""
    return orjson.loads(zlib.decompress(content))


def thaw(
    inventory: Sequence[Any], counters: Mapping[str, Any], new_view: Callable[[], ClusterView]
) -> ClusterView:
    """A view of the nodes that have counters, as it was then; `new_view` makes an empty one.

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


def changed(
    view: ClusterView,
    node: NodeName,
    changes: Mapping[GpuUuid, Callable[[DeviceUsage], DeviceUsage]],
    new_view: Callable[[], ClusterView],
) -> ClusterView:
    """A view of that node alone, with some of its cards changed."""
    alone = new_view()
    alone.set_node(
        node,
        [
            CardState(changes.get(usage.device.uuid, _same)(usage), 1)
            for usage, _ in view.cards(node)
        ],
    )
    return alone


def _same(usage: DeviceUsage) -> DeviceUsage:
    return usage


def freed(
    usage: DeviceUsage,
    *,
    slots: int,
    memory_mib: int,
    core_percent: int,
    details: Sequence[Mapping[str, Any]] = (),
) -> DeviceUsage:
    """The card after somebody has given back this much."""
    holdings = list(usage.holdings)
    for detail in details:
        if detail in holdings:
            holdings.remove(detail)
    return replace(
        usage,
        used_slots=max(0, usage.used_slots - slots),
        used_memory_mib=max(0, usage.used_memory_mib - memory_mib),
        used_core_percent=max(0, usage.used_core_percent - core_percent),
        holdings=tuple(holdings),
    )


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


def _packed(text: bytes) -> Blob:
    return Blob(hashlib.blake2b(text, digest_size=16).hexdigest(), zlib.compress(text, FAST))
