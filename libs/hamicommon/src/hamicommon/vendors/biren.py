"""Biren cards: a container gets slots of cards; memory and cores are not divided.

Facts: protocol sheet 1.15.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hamicommon.deviceconfig import BirenConfig
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.k8s import annotations as keys
from hamicommon.placement.vendor_rules import VendorRules
from hamicommon.vendors.base import (
    NO_ANNOTATIONS,
    Admitted,
    AnnotationKeys,
    JsonObject,
    PairScores,
    Placed,
    ResourceNames,
)
from hamicommon.vendors.slots import SLOT_ORDER, admit_slots, no_amounts, slot_cards, slot_request
from hamicommon.vendors.standard import answers_handshake, device_annotations, selection

WORD = "Biren"

_KEYS = AnnotationKeys(
    register="hami.io/node-biren-register",
    handshake="hami.io/node-handshake-biren",
    to_allocate="hami.io/Biren-devices-to-allocate",
    allocated="hami.io/Biren-devices-allocated",
    lock=keys.NODE_LOCK,
)
_RULES = VendorRules(order=SLOT_ORDER, need=no_amounts)


@dataclass(frozen=True, slots=True)
class Biren:
    """The vendor `Biren` (see vendors.base.Vendor)."""

    config: BirenConfig

    @property
    def word(self) -> str:
        """`Biren`."""
        return WORD

    @property
    def resources(self) -> ResourceNames:
        """Names of its extended resources."""
        return ResourceNames(count=self.config.resource_count_name)

    @property
    def keys(self) -> AnnotationKeys:
        """Names of its annotations."""
        return _KEYS

    @property
    def rules(self) -> VendorRules:
        """The standard loop without amounts."""
        return _RULES

    def parse_request(
        self, container: JsonObject, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """How many cards the container asks for; None when it asks for none.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        return slot_request(container, self.config.resource_count_name, WORD)

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """Which cards the pod's annotations allow."""
        return selection(
            annotations,
            use_uuids="birentech.com/use-gpuuuid",
            avoid_uuids="birentech.com/nouse-gpuuuid",
        )

    def node_devices(self, node: JsonObject) -> tuple[GpuDevice, ...]:
        """The cards in the node's register annotation; empty when it has none.

        Raises: InvalidRequest when the annotation is malformed.
        """
        return slot_cards(node, _KEYS.register, WORD)

    def node_pair_scores(self, node: JsonObject) -> PairScores:
        """None are known."""
        return {}

    def pod_annotations(self, placed: Placed) -> dict[str, str]:
        """The slices, twice."""
        return device_annotations(placed, WORD, _KEYS)

    def plugin_alive(self, node: JsonObject) -> bool:
        """See `answers_handshake`."""
        return answers_handshake(node, _KEYS.handshake, self.config.resource_count_name)

    def mutate(self, container: JsonObject, pod: JsonObject) -> Admitted:
        """Changes nothing.

        Raises: InvalidRequest when the container asks for something that can never be given.
        """
        return admit_slots(container, self.config.resource_count_name, WORD)
