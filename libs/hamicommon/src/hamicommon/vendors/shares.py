"""Vendors whose containers request a number of cards, with memory and cores of each.

Facts: protocol 1.2 (AMD), 1.3 (Cambricon), 1.4 (Hygon), 1.5 (Iluvatar), 1.6 (Moore Threads).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from hamicommon.device_config import (
    INT32_MAX,
    AmdConfig,
    CambriconConfig,
    HygonConfig,
    IluvatarChip,
    MthreadsConfig,
)
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import NODE_LOCK
from hamicommon.k8s.types import Json
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import STANDARD_ORDER, Need, VendorRules
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.vendor import (
    NO_ANNOTATIONS,
    AnnotationKeys,
    ListedCards,
    MutateResult,
    PlacedPod,
    ResourceNames,
    Vendor,
    indexes,
    set_env,
    unix_ns,
)

UNIT_MIB = 256
"""MiB per unit of the memory resources of Cambricon and Iluvatar."""


@dataclass(frozen=True, slots=True)
class Hygon(Vendor):
    """Vendor `DCU`, Hygon's cards."""

    config: HygonConfig

    name = "DCU"
    keys = AnnotationKeys(
        register="hami.io/node-dcu-register",
        handshake="hami.io/node-handshake-dcu",
        to_allocate="hami.io/dcu-devices-to-allocate",
        allocated="hami.io/dcu-devices-allocated",
        use_types="hygon.com/use-dcutype",
        avoid_types="hygon.com/nouse-dcutype",
        use_uuids="hygon.com/use-gpuuuid",
        avoid_uuids="hygon.com/nouse-gpuuuid",
        lock=NODE_LOCK,
    )


@dataclass(frozen=True, slots=True)
class Cambricon(Vendor):
    """Vendor `MLU`, Cambricon's cards.

    Type annotations exist in HAMi as names only and are not read.
    """

    config: CambriconConfig

    name = "MLU"
    keys = AnnotationKeys(
        to_allocate="hami.io/cambricon-mlu-devices-to-allocate",
        allocated="hami.io/cambricon-mlu-devices-allocated",
        use_uuids="cambricon.com/use-gpuuuid",
        avoid_uuids="cambricon.com/nouse-gpuuuid",
        extra=("CAMBRICON_DSMLU_ASSIGNED", "CAMBRICON_DSMLU_PROFILE"),
        lock="cambricon.com/dsmlu.lock",
    )
    memory_factor = UNIT_MIB
    listed_cards = ListedCards(name="cambricon-mlu", cores=100, slots=100)

    def plugin_annotations(self, placed: PlacedPod) -> dict[str, str]:
        """Return the annotation `<index>_<cores>_<memory units>` of the first slice."""
        first = placed.shares_of(self.name)[0]
        index, units = placed.cards[first.uuid].index, first.memory_mib // UNIT_MIB
        return dict(
            zip(self.keys.extra, ("false", f"{index}_{first.core_percent}_{units}"), strict=True)
        )


@dataclass(frozen=True, slots=True)
class Iluvatar(Vendor):
    """Vendor of one Iluvatar chip, such as `MR-V100`.

    Cores of a pod that went through admission may be of all its cards together; the loop takes
    at most 100 of each card.
    """

    config: IluvatarChip

    memory_factor = UNIT_MIB
    default_core_percent = 0

    @property
    def name(self) -> str:
        """Name of the chip."""
        return self.config.common_word

    @property
    def keys(self) -> AnnotationKeys:
        """Names of its annotations."""
        return _iluvatar_keys(self.name)

    def mutate(self, container: Json, pod: Json) -> MutateResult:
        """Grant several cards whole, and write the container's name for the runtime.

        Raises: InvalidRequest when the container asks for something that can never be given.
        """
        request = self.parse_request(container)
        if not amounts.asks(container, self.config.resource_count_name, limits_only=True):
            return MutateResult(wants=False)
        warnings = self._take_whole(container, request) if request is not None else ()
        name, env = container.get("name", ""), "SOL_CONTINER_NAME"  # As the runtime spells it.
        if name and all(entry.get("name") != env for entry in container.get("env") or ()):
            set_env(container, env, name)
        return MutateResult(wants=True, warnings=warnings)

    def _take_whole(self, container: Json, request: DeviceRequest) -> tuple[str, ...]:
        """Write all cores of several cards; warn if the container requested a different amount."""
        resource = self.config.resource_core_name
        if request.count == 1 or not resource:
            return ()
        limits = container["resources"]["limits"]
        written, whole = limits.get(resource), request.count * 100
        limits[resource] = str(whole)
        if written is None or request.core_percent == whole:
            return ()
        return (
            f"container {container.get('name', '')!r}: {resource} {written} is taken as {whole}, "
            "because several cards are given whole",
        )


@cache
def _iluvatar_keys(vendor: str) -> AnnotationKeys:
    return AnnotationKeys(
        register=f"hami.io/node-{vendor}-register",
        handshake=f"hami.io/node-handshake-{vendor}",
        to_allocate=f"hami.io/{vendor}-devices-to-allocate",
        allocated=f"hami.io/{vendor}-devices-allocated",
        use_uuids=f"hami.io/use-{vendor}-uuid",
        avoid_uuids=f"hami.io/no-use-{vendor}-uuid",
        lock=NODE_LOCK,
    )


def compute_units(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """Return AMD's percent of the card as compute units, rounded down to at least one.

    A card that reports no units cannot give one, so the need of one refuses it.
    """
    units = max(min(card.core_percent * request.core_percent // 100, card.core_percent), 1)
    return Need(request.memory_mib_on(card.memory_mib), units)


@dataclass(frozen=True, slots=True)
class Amd(Vendor):
    """Vendor `AMD`: memory in MiB, and compute units requested as percent.

    `core_percent` of `GpuDevice` and `DeviceShare` are compute units here.
    """

    config: AmdConfig

    name = "AMD"
    keys = AnnotationKeys(
        register="hami.io/node-amd-register",
        to_allocate="hami.io/amd-devices-to-allocate",
        allocated="hami.io/amd-devices-allocated",
        use_types="amd.com/use-gputype",
        avoid_types="amd.com/nouse-gputype",
        use_uuids="amd.com/use-gpu-uuid",
        avoid_uuids="amd.com/nouse-gpu-uuid",
        lock=NODE_LOCK,
    )
    rules = VendorRules(
        # None for exclusive or exhausted cards: a whole card is all of its compute units.
        order=STANDARD_ORDER[: STANDARD_ORDER.index(Rule.EXCLUSIVE)],
        need=compute_units,
        share_type=lambda card: card.type,
    )
    limits_only = True
    alive_while_listed = True

    def _core_percent(self, container: Json, names: ResourceNames) -> int:
        wanted = "a whole number from 1 to 100, the share of a card's compute units"
        percent = amounts.whole(
            container, names.core, low=1, top=100, wanted=wanted, limits_only=True
        )
        return 100 if percent is None else percent

    def mutate(self, container: Json, pod: Json) -> MutateResult:
        """Change nothing; return whether the pod asks for any of the resources.

        Raises: InvalidRequest when the container asks for something that can never be given.
        """
        self.parse_request(container)
        names = self.resources.all()
        wants = any(amounts.asks(container, each, limits_only=True) for each in names)
        return MutateResult(wants=wants)


@dataclass(frozen=True, slots=True)
class Mthreads(Vendor):
    """Vendor `Mthreads`, cards of Moore Threads.

    A card has 16 cores, and `core_percent` counts these. The amounts of a container are for all its
    cards together. HAMi never writes a to-allocate annotation for this vendor.
    """

    config: MthreadsConfig

    name = "Mthreads"
    keys = AnnotationKeys(
        allocated="hami.io/mthreads-vgpu-devices-allocated",
        extra=(
            "mthreads.com/gpu-index",
            "mthreads.com/predicate-time",
            "mthreads.com/predicate-node",
        ),
        # Not .com, as its other keys.
        use_uuids="mthreads.ai/use-gpuuuid",
        avoid_uuids="mthreads.ai/nouse-gpuuuid",
    )
    rules = VendorRules(same_card=True)
    memory_factor = 512
    cores_per_card = 16
    whole_units = 96
    """Memory units that admission writes per whole card."""
    sizes = (2, 4, 8, 16, 32, 64, 96)
    """Memory units into which one card can be cut."""
    listed_cards = ListedCards(name="mthreads", cores=cores_per_card, slots=100)

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Return equal parts of the amounts on each card; without memory all of the card's.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        names = self.resources
        count = amounts.count(container, names.count)
        if not count:
            return None
        memory = self._memory_mib(container, names) // count
        wanted = f"a whole number, {self.cores_per_card} for each card"
        cores = amounts.whole(container, names.core, top=INT32_MAX, wanted=wanted)
        return DeviceRequest(
            vendor=self.name,
            count=count,
            memory_mib=memory,
            memory_percent=None if memory else 100,
            core_percent=(cores or 0) // count,
        )

    def plugin_annotations(self, placed: PlacedPod) -> dict[str, str]:
        """Return the annotations with the cards' indexes, the time and the node."""
        values = (indexes(placed, self.name), unix_ns(placed.now), placed.node)
        return dict(zip(self.keys.extra, values, strict=True))

    def mutate(self, container: Json, pod: Json) -> MutateResult:
        """Write whole cards if several are requested, or one without memory.

        Raises: InvalidRequest when no card is asked for, or memory of a size that no card has.
        """
        names = self.resources
        wanted = "a whole number of cards, for example 1"
        low, top = -INT32_MAX, INT32_MAX
        count = amounts.whole(container, names.count, low=low, top=top, wanted=wanted)
        if count is None:
            return MutateResult(wants=False)
        if count <= 0:
            name = container.get("name", "")
            raise InvalidRequest(
                f"container {name!r}: {names.count} must be greater than 0, not {count}"
            )
        if count > 1:
            self._write_whole(container, count)
            metadata = pod.setdefault("metadata", {})
            number = {"mthreads.com/request-gpu-num": str(count)}
            metadata["annotations"] = (metadata.get("annotations") or {}) | number
        elif amounts.find(container, names.memory, limits_only=True) is None:
            self._write_whole(container, 1)
        else:
            self._check_size(container)
        self.parse_request(container)
        return MutateResult(wants=True)

    def _check_size(self, container: Json) -> None:
        sizes, resource = ", ".join(map(str, self.sizes)), self.resources.memory
        wanted = f"one of {sizes}, in units of {self.memory_factor} MiB"
        top = max(self.sizes)
        size = amounts.whole(container, resource, top=top, wanted=wanted, limits_only=True)
        if size not in self.sizes:
            name = container.get("name", "")
            raise InvalidRequest(f"container {name!r}: {resource} is {size}: expected {wanted}")

    def _write_whole(self, container: Json, count: int) -> None:
        """Write all cores and memory of this many cards to the limits."""
        resources, names = container.get("resources") or {}, self.resources
        wanted = {names.core: self.cores_per_card, names.memory: self.whole_units}
        given = {name: str(count * each) for name, each in wanted.items() if name}
        container["resources"] = resources | {"limits": (resources.get("limits") or {}) | given}
