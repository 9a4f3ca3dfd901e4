"""Ascend NPUs: every chip of the configuration is a vendor of its own.

Facts: protocol 1.16. A share of a chip is one of its templates (memory with AI cores), chosen
by memory at admission; or, on nodes that can, any memory and percent of cores, asked for by the
pod's annotation `huawei.com/vnpu-mode: hami-core`. `fit.py` chooses chips.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from hamicommon.device_config import VnpuChip, VnpusConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.requests import Selection
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.pod_annotations import UserAnnotation
from hamicommon.k8s.types import Json
from hamicommon.placement.vendor_policy import VendorRules
from hamicommon.vendors.ascend.admission import ASCEND_VISIBLE, admit, hide_chips, template_for
from hamicommon.vendors.ascend.fit import HAMI_CORE, MODE, SOFT_SLICES, rules_for
from hamicommon.vendors.interface.guarded import GuardedVariable
from hamicommon.vendors.interface.registered import RegisteredVendor
from hamicommon.vendors.interface.shares import ShareVendor
from hamicommon.vendors.interface.standard import device_annotations, selection
from hamicommon.vendors.interface.vendor import Admitted, AnnotationKeys, Placed, ResourceNames

VNPU_MODE = UserAnnotation(
    name="huawei.com/vnpu-mode",
    parse=str,
    wanted=HAMI_CORE,
    holds="chips are cut in software, on nodes that support it",
    is_known=lambda text: text == HAMI_CORE,
    otherwise="it is left out",
)
SOFT_SLICES_ANNOTATION = "hami-vnpu-core"
"""On a node: `true` when its chips can be cut in software; else the configuration decides."""

_TIME = "predicate-time"


@cache
def _keys(vendor: str) -> AnnotationKeys:
    return AnnotationKeys(
        register=f"hami.io/node-register-{vendor}",
        handshake=f"hami.io/node-handshake-{vendor}",
        to_allocate=f"hami.io/{vendor}-devices-to-allocate",
        allocated=f"hami.io/{vendor}-devices-allocated",
        extra=(_TIME, _runtime_key(vendor)),
        use_uuids=f"hami.io/use-{vendor}-uuid",
        avoid_uuids=f"hami.io/no-use-{vendor}-uuid",
        choices=(VNPU_MODE,),
        lock=keys.NODE_LOCK,
    )


def _runtime_key(vendor: str) -> str:
    """On the pod: the templates, for the Ascend runtime."""
    return f"huawei.com/{vendor}"


@dataclass(frozen=True, slots=True)
class Ascend(RegisteredVendor, ShareVendor):
    """One chip, such as `Ascend910B3` (see `interface.vendor.Vendor`)."""

    chip: VnpuChip
    config: VnpusConfig
    """The block that the chip is of."""

    default_core_percent = 0

    @property
    def name(self) -> str:
        """The chip's common name."""
        return self.chip.common_word

    @property
    def resources(self) -> ResourceNames:
        """Names of its extended resources."""
        return ResourceNames(
            count=self.chip.resource_name,
            memory=self.chip.resource_memory_name,
            core=self.chip.resource_core_name,
            memory_factor=max(self.chip.memory_factor, 1),
        )

    @property
    def keys(self) -> AnnotationKeys:
        """Names of its annotations."""
        return _keys(self.name)

    @property
    def rules(self) -> VendorRules:
        """The standard loop, with chips of one network or one module taken together."""
        return rules_for(self.name, pairs=self.chip.super_pod)

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """Which chips the pod's annotations allow, and whether it wants soft slices."""
        chosen = selection(annotations, self.keys)
        soft = VNPU_MODE.read(annotations) == HAMI_CORE
        return replace(chosen, traits={MODE: HAMI_CORE}) if soft else chosen

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """The chips in the node's register annotation, each with whether it can be cut in software.

        Raises: InvalidRequest when the annotation is malformed.
        """
        written = keys.annotations_of(node).get(SOFT_SLICES_ANNOTATION)
        soft = self.config.hami_vnpu_core if written is None else written == "true"
        return tuple(
            replace(card, info={**card.info, SOFT_SLICES: soft})
            for card in RegisteredVendor.node_devices(self, node)
        )

    @property
    def guarded_variables(self) -> tuple[GuardedVariable, ...]:
        """See `interface.guarded.GuardsSlices`."""
        return (ASCEND_VISIBLE,)

    @property
    def request_folder(self) -> str:
        """Return empty: the vendor has no such folder."""
        return ""

    def hide_cards(self, container: Json) -> None:
        """Hide the chips, as `mutate` does in a container of a pod of ours."""
        hide_chips(container, self.chip, self.config)

    def pod_annotations(self, placed: Placed) -> dict[str, str]:
        """The slices, twice; the time; and the templates for the runtime."""
        written = device_annotations(placed, self.name, self.keys)
        if not written:
            return {}
        soft = placed.selections.get(self.name, Selection()).traits.get(MODE) == HAMI_CORE
        runtime = [
            self._runtime_entry(share, soft=soft)
            for container in placed.containers
            for share in container.shares
            if share.vendor == self.name
        ]
        return written | {
            _TIME: str(int(placed.now.timestamp())),
            _runtime_key(self.name): json.dumps(runtime, separators=(",", ":"), ensure_ascii=False),
        }

    def _runtime_entry(self, share: DeviceShare, *, soft: bool) -> dict[str, str | int]:
        """One slice, in the order of fields that HAMi writes; zero and empty ones are left out."""
        template = None if soft else template_for(self.chip, share.memory_mib)
        fields: dict[str, str | int] = {
            "UUID": share.uuid,
            "temp": template.name if template else "",
            "memory": share.memory_mib,
            "core": share.core_percent,
        }
        return {name: value for name, value in fields.items() if value}

    def mutate(self, container: Json, pod: Json) -> Admitted:
        """Pairs of chips, memory of a template, the runtime class (see `admission.py`).

        Raises: InvalidRequest when the container asks for something that can never be given.
        """
        request = self.parse_request(container)
        soft = VNPU_MODE.read(keys.annotations_of(pod)) == HAMI_CORE
        return admit(container, pod, request, chip=self.chip, config=self.config, soft=soft)
