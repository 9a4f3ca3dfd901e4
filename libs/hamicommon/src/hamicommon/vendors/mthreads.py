"""Moore Threads cards, the vendor `Mthreads`. Facts: protocol 1.6.

Memory is asked for in units of 512 MiB; a card has 16 cores, and `core_percent` counts these. The
amounts of a container are for all its cards together. HAMi never writes a to-allocate annotation
for this vendor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hamicommon.device_config import INT32_MAX, MthreadsConfig
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.placement.vendor_policy import VendorRules
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.shares import ShareVendor, cards_by_cores
from hamicommon.vendors.interface.standard import device_annotations, indexes, unix_ns
from hamicommon.vendors.interface.vendor import NO_ANNOTATIONS, Admitted, AnnotationKeys, Placed

NAME = "Mthreads"
FACTOR = 512
"""MiB per unit of the memory resource."""
CORES = 16
"""Cores of one card."""
UNITS = 96
"""Memory units that admission gives per whole card."""
SIZES = (2, 4, 8, 16, 32, 64, 96)
"""Memory units in which one card can be cut."""

INDEX = "mthreads.com/gpu-index"
TIME = "mthreads.com/predicate-time"
NODE = "mthreads.com/predicate-node"
NUMBER = "mthreads.com/request-gpu-num"

KEYS = AnnotationKeys(
    allocated="hami.io/mthreads-vgpu-devices-allocated",
    extra=(INDEX, TIME, NODE),
    # Not .com, as its other keys.
    use_uuids="mthreads.ai/use-gpuuuid",
    avoid_uuids="mthreads.ai/nouse-gpuuuid",
)
RULES = VendorRules(same_card=True)


@dataclass(frozen=True, slots=True)
class Mthreads(ShareVendor):
    """The vendor `Mthreads` (see `interface.vendor.Vendor`)."""

    config: MthreadsConfig

    name = NAME
    keys = KEYS
    rules = RULES
    memory_factor = FACTOR

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """An equal part of the amounts on every card; without memory the whole card's.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        count = amounts.count(container, self.resources.count)
        if not count:
            return None
        memory = amounts.memory(container, self.resources.memory, factor=FACTOR) // count
        wanted = f"a whole number, {CORES} for each card,"
        cores = amounts.whole(container, self.resources.core, top=INT32_MAX, wanted=wanted)
        return DeviceRequest(
            vendor=NAME,
            count=count,
            memory_mib=memory,
            memory_percent=None if memory else 100,
            core_percent=(cores or 0) // count,
        )

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """A card per 16 of the listed cores, each with its part of the listed memory.

        Raises: InvalidRequest when a capacity is no whole number.
        """
        return cards_by_cores(self, node, name="mthreads", cores_per_card=CORES)

    def pod_annotations(self, placed: Placed) -> dict[str, str]:
        """The slices, and what the device plugin of this vendor reads."""
        written = device_annotations(placed, NAME, KEYS)
        if written:
            written[INDEX] = indexes(placed, NAME)
            written[TIME] = unix_ns(placed.now)
            written[NODE] = placed.node
        return written

    def mutate(self, container: Json, pod: Json) -> Admitted:
        """Whole cards when several are asked for, or one without its memory.

        Raises: InvalidRequest when no card is asked for, or memory of a size that no card has.
        """
        names = self.resources
        wanted = "a whole number of cards, for example 1,"
        low, top = -INT32_MAX, INT32_MAX
        count = amounts.whole(container, names.count, low=low, top=top, wanted=wanted)
        if count is None:
            return Admitted(wants=False)
        if count <= 0:
            name = container.get("name", "")
            raise InvalidRequest(
                f"container {name!r}: {names.count} must be greater than 0, not {count}"
            )
        if count > 1:
            _set_limits(container, {names.core: count * CORES, names.memory: count * UNITS})
            metadata = pod.setdefault("metadata", {})
            metadata["annotations"] = (metadata.get("annotations") or {}) | {NUMBER: str(count)}
        elif amounts.find(container, names.memory, limits_only=True) is None:
            _set_limits(container, {names.core: CORES, names.memory: UNITS})
        else:
            _check_size(container, names.memory)
        self.parse_request(container)
        return Admitted(wants=True)


def _check_size(container: Json, resource: str) -> None:
    sizes = ", ".join(map(str, SIZES))
    wanted = f"one of {sizes}, in units of {FACTOR} MiB,"
    size = amounts.whole(container, resource, top=max(SIZES), wanted=wanted, limits_only=True)
    if size not in SIZES:
        raise InvalidRequest(
            f"container {container.get('name', '')!r}: {resource} is {size}: {wanted} is wanted"
        )


def _set_limits(container: Json, wanted: Mapping[str, int]) -> None:
    resources = container.get("resources") or {}
    given = {name: str(amount) for name, amount in wanted.items() if name}
    container["resources"] = resources | {"limits": (resources.get("limits") or {}) | given}
