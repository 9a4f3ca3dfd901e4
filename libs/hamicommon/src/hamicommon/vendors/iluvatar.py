"""Iluvatar cards: every chip of the configuration is a vendor of its own.

Facts: protocol 1.5. Memory is asked for in units of 256 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from hamicommon.device_config import INT32_MAX, IluvatarChip
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.types import JsonObject
from hamicommon.placement.vendor_policy import VendorRules
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.standard import (
    answers_handshake,
    device_annotations,
    registered_cards,
    selection,
    set_env,
)
from hamicommon.vendors.interface.vendor import (
    NO_ANNOTATIONS,
    Admitted,
    AnnotationKeys,
    PairScores,
    Placed,
    ResourceNames,
)

UNIT_MIB = 256

CONTAINER_ENV = "SOL_CONTINER_NAME"
"""Spelt as the vendor's runtime reads it."""

_RULES = VendorRules()


@cache
def _keys(word: str) -> AnnotationKeys:
    return AnnotationKeys(
        register=f"hami.io/node-{word}-register",
        handshake=f"hami.io/node-handshake-{word}",
        to_allocate=f"hami.io/{word}-devices-to-allocate",
        allocated=f"hami.io/{word}-devices-allocated",
        lock=keys.NODE_LOCK,
    )


@dataclass(frozen=True, slots=True)
class Iluvatar:
    """One chip, such as `MR-V100` (see vendors.base.Vendor)."""

    chip: IluvatarChip

    @property
    def word(self) -> str:
        """The chip's common word."""
        return self.chip.common_word

    @property
    def resources(self) -> ResourceNames:
        """Names of its extended resources."""
        return ResourceNames(
            count=self.chip.resource_count_name,
            memory=self.chip.resource_memory_name,
            core=self.chip.resource_core_name,
            memory_factor=UNIT_MIB,
        )

    @property
    def keys(self) -> AnnotationKeys:
        """Names of its annotations."""
        return _keys(self.word)

    @property
    def rules(self) -> VendorRules:
        """The standard loop."""
        return _RULES

    def parse_request(
        self, container: JsonObject, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """What the container asks for; None when it asks for no card.

        Cores of a pod that went through admission may be of all its cards together; the loop takes
        at most 100 of each card.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        count = amounts.count(container, self.chip.resource_count_name)
        if not count:
            return None
        memory = amounts.memory(container, self.chip.resource_memory_name, factor=UNIT_MIB)
        cores = amounts.whole(
            container,
            self.chip.resource_core_name,
            top=INT32_MAX,
            wanted="a whole number from 0 to 100, the share of a card's cores,",
        )
        return DeviceRequest(
            vendor=self.word,
            count=count,
            memory_mib=memory,
            memory_percent=None if memory else 100,
            core_percent=cores or 0,
        )

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """Which cards the pod's annotations allow."""
        return selection(
            annotations,
            use_uuids=f"hami.io/use-{self.word}-uuid",
            avoid_uuids=f"hami.io/no-use-{self.word}-uuid",
        )

    def node_devices(self, node: JsonObject) -> tuple[GpuDevice, ...]:
        """The cards in the node's register annotation; empty when it has none.

        Raises: InvalidRequest when the annotation is malformed.
        """
        return registered_cards(node, self.keys.register, self.word)

    def node_pair_scores(self, node: JsonObject) -> PairScores:
        """None are known."""
        return {}

    def pod_annotations(self, placed: Placed) -> dict[str, str]:
        """The slices, twice."""
        return device_annotations(placed, self.word, self.keys)

    def plugin_alive(self, node: JsonObject) -> bool:
        """See `answers_handshake`."""
        return answers_handshake(node, self.keys.handshake, self.chip.resource_count_name)

    def mutate(self, container: JsonObject, pod: JsonObject) -> Admitted:
        """Several cards are taken whole; the runtime learns the container's name.

        Raises: InvalidRequest when the container asks for something that can never be given.
        """
        request = self.parse_request(container)
        if not amounts.asks(container, self.chip.resource_count_name, limits_only=True):
            return Admitted(wants=False)
        warnings = self._take_whole(container, request) if request is not None else ()
        name = container.get("name", "")
        if name and all(entry.get("name") != CONTAINER_ENV for entry in container.get("env") or ()):
            set_env(container, CONTAINER_ENV, name)
        return Admitted(wants=True, warnings=warnings)

    def _take_whole(self, container: JsonObject, request: DeviceRequest) -> tuple[str, ...]:
        """Writes all cores of several cards; warns when the container asked for other cores."""
        resource = self.chip.resource_core_name
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
