"""Compute the node's ResourceSlice: its cards without what the device plugin has granted. Pure.

kube-scheduler adds up what claims take of a device and knows nothing of pods that ask for
`nvidia.com/gpu`; their part is taken off the capacity here. It comes a moment late, so it only
keeps pods from waiting: that a card never holds more than it has is the ledger's doing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hamicommon.domain.allocations import footprints
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.dra.devices import DRIVER, device_of
from hamicommon.k8s.quantities import parse_exact
from hamicommon.k8s.types import Json

from hami_node_agent.grants.book import NodeGrant

MAX_DEVICES = 64
"""Maximum devices of a slice whose devices may have taints (resource.k8s.io/v1)."""


def taken_by_plugin(grants: Iterable[NodeGrant]) -> Mapping[GpuUuid, tuple[int, int, int]]:
    """Return MiB, percent and slots of each card that are granted other than by claims."""
    memory_mib: Counter[GpuUuid] = Counter()
    core_percent: Counter[GpuUuid] = Counter()
    slots: Counter[GpuUuid] = Counter()
    for grant in grants:
        if not grant.claimed:
            for part in footprints(grant.containers):
                memory_mib[part.uuid] += part.memory_mib
                core_percent[part.uuid] += part.core_percent
                slots[part.uuid] += part.slots
    return {uuid: (memory_mib[uuid], core_percent[uuid], slots[uuid]) for uuid in slots}


def offered_devices(cards: Iterable[GpuDevice], grants: Iterable[NodeGrant]) -> list[Json]:
    """Return the slice's devices, by index; cards in MIG mode are left to the device plugin."""
    taken = taken_by_plugin(grants)
    shared = sorted((c for c in cards if c.mode != "mig"), key=lambda card: card.index)
    found = []
    for card in shared[:MAX_DEVICES]:
        memory_mib, core_percent, slots = taken.get(card.uuid, (0, 0, 0))
        found.append(
            device_of(
                card,
                memory_mib=card.memory_mib - memory_mib,
                core_percent=card.core_percent - core_percent,
                slots=card.slots - slots,
            )
        )
    return found


def slice_name(node: str) -> str:
    """Return the name of the node's only ResourceSlice."""
    return f"{node}-{DRIVER}"[:253]


def wanted_slice(
    node: str, node_uid: str, devices: Sequence[Json], now: Mapping[str, Any] | None
) -> Json | None:
    """Return the slice to write in place of `now`; None if `now` is correct."""
    generation = 1
    metadata: Json = {
        "name": slice_name(node),
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
        ],
    }
    if now is not None:
        if _is_equal(now["spec"].get("devices", []), list(devices)):
            return None
        # Allocators see a change by it.
        generation = int(now["spec"]["pool"]["generation"]) + 1
        metadata["resourceVersion"] = now["metadata"]["resourceVersion"]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def _is_equal(now: Any, wanted: Any, *, amounts: bool = False) -> bool:
    """Return whether the API server's slice is equal: it writes 81920Mi as 80Gi, and adds times."""
    if isinstance(now, dict) and isinstance(wanted, dict):
        return now.keys() - {"timeAdded"} == wanted.keys() and all(
            _is_equal(now[key], wanted[key], amounts=amounts or key == "capacity") for key in wanted
        )
    if isinstance(now, list) and isinstance(wanted, list):
        pairs = zip(now, wanted, strict=False)
        return len(now) == len(wanted) and all(_is_equal(*pair, amounts=amounts) for pair in pairs)
    return bool(parse_exact(now) == parse_exact(wanted) if amounts else now == wanted)
