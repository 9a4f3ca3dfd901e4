"""Ascend NPUs: every chip of the configuration is a separate vendor (protocol 1.16).

A share of a chip is one of its templates (memory with AI cores), chosen by memory at admission. On
nodes that support it, a share is any memory and percent of cores, requested by the pod's annotation
`huawei.com/vnpu-mode: hami-core`. Several chips are taken from as few networks as possible. Chips
that come in modules of two are taken only as whole modules. Soft slices are placed only on nodes
that can cut chips in software.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from hamicommon.device_config import VnpuChip, VnpusConfig, VnpuTemplate
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.pod_annotations import UserAnnotation
from hamicommon.k8s.types import Json
from hamicommon.placement.rules import PARTIAL, REASONS, Rule
from hamicommon.placement.vendor_policy import (
    Chosen,
    Need,
    NodeAsk,
    NotChosen,
    VendorRules,
    standard_need,
    tally,
)
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.vendor import (
    AnnotationKeys,
    GuardedVariable,
    MutateResult,
    PlacedPod,
    ResourceNames,
    Vendor,
    set_env,
)
from hamicommon.vendors.slots import largest_share, least_groups

MODE = "mode"
"""Trait of a selection: the way in which the pod wants its chips cut."""
HAMI_CORE = "hami-core"
"""Mode in which chips are cut in software: any memory, and cores as percent."""

SOFT_SLICES = "SoftSlices"
"""Key in `GpuDevice.info`: whether the chip's node can cut in software."""

_NETWORK = "NetworkID"
_FAMILY_910 = "Ascend910"
_NETWORK_WEIGHT = 10
_CHIPS_PER_MODULE = 2


@cache
def rules_for(vendor: str, *, pairs: bool) -> VendorRules:
    """Return the engine's rules for one chip; `pairs`: two chips form a module."""
    networked = vendor.startswith(_FAMILY_910)

    def applies(request: DeviceRequest, selection: Selection, cards: Sequence[GpuDevice]) -> bool:
        if _soft(selection):
            return True
        return request.count > 1 and (pairs or (networked and _all_networked(cards)))

    def decides(request: DeviceRequest, selection: Selection) -> bool:
        return _soft(selection) or (pairs and request.count > 1)

    return VendorRules(
        need=_need,
        chooser=partial(choose_chips, networked=networked, pairs=pairs),
        chooser_rules=(Rule.MODE,),
        chooser_decides=decides,
        applies=applies,
        scorer=score_networks if networked else None,
    )


def choose_chips(ask: NodeAsk, *, networked: bool, pairs: bool) -> Chosen | NotChosen:
    """Choose chips: whole modules (`pairs`), few networks (`networked`), or the first that fit."""
    chips = [card.device for card in ask.cards]
    if _soft(ask.selection) and not all(chip.info.get(SOFT_SLICES) for chip in chips):
        return NotChosen(
            reasons={REASONS[Rule.MODE]: 1},
            refused={
                chip.uuid: Rule.MODE
                for chip, rule in zip(chips, ask.rules, strict=True)
                if rule == Rule.FITS
            },
        )
    free = [chip for chip, rule in zip(chips, ask.rules, strict=True) if rule == Rule.FITS]
    wanted = ask.request.count
    if pairs and wanted > 1:
        picked = _whole_modules(free, wanted)
        if len(picked) != wanted:
            return NotChosen(
                reasons=tally(ask.rules) | {PARTIAL: len(picked)},
                total=wanted,
                limit="in whole modules of two chips",
                fitting=min(len(picked), wanted - 1),
            )
    elif len(free) < wanted:
        return NotChosen(reasons=tally(ask.rules) | ({PARTIAL: len(free)} if free else {}))
    elif wanted > 1 and networked and _all_networked(chips):
        picked = least_groups(free, wanted, group=_network)
    else:
        picked = free[:wanted]
    return Chosen.of(ask, picked, _need)


def _whole_modules(free: Sequence[GpuDevice], wanted: int) -> list[GpuDevice]:
    """Return chips of modules whose two chips are free, in order, up to `wanted` chips.

    If that is impossible, there are fewer, or one more if `wanted` is odd.
    """
    modules: dict[int, list[GpuDevice]] = {}
    for chip in free:
        modules.setdefault(chip.index // _CHIPS_PER_MODULE, []).append(chip)
    picked: list[GpuDevice] = []
    for module in modules.values():
        if len(module) == _CHIPS_PER_MODULE and len(picked) < wanted:
            picked += module
    return picked


def _need(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """Return the standard need; soft slices count cores as percent, whatever the chip registers."""
    need = standard_need(request, selection, card)
    return need._replace(of_core=100) if _soft(selection) else need


def _soft(selection: Selection) -> bool:
    return selection.traits.get(MODE) == HAMI_CORE


def _all_networked(chips: Sequence[GpuDevice]) -> bool:
    return all(_NETWORK in chip.info for chip in chips)


def _network(chip: GpuDevice) -> float | str:
    """Return the number of the chip's network, or whatever else the chip registers for it."""
    network = chip.info.get(_NETWORK)
    return network if isinstance(network, int | float) else repr(network)


def score_networks(
    before: Sequence[DeviceUsage],
    containers: Sequence[Sequence[DeviceShare]],
    selection: Selection,
    node_policy: str,
) -> float:
    """Return the share of each container's chips in one network, summed, times 10.

    0 when any of the chips registers no network.
    """
    chips = {card.device.uuid: card.device for card in before}
    taken = [[chips[share.uuid] for share in shares] for shares in containers if shares]
    if not all(_all_networked(group) for group in taken):
        return 0.0
    return _NETWORK_WEIGHT * sum(largest_share(group, group=_network) for group in taken)


ASCEND_VISIBLE = GuardedVariable(
    name="ASCEND_VISIBLE_DEVICES",
    harmless=lambda value: not value,
    effect="chips come with their resource and no other way",
    without_card=True,
    instead="",
)
"""Environment variable by which the Ascend runtime gives chips to a container."""


def template_for(chip: VnpuChip, memory_mib: int) -> VnpuTemplate | None:
    """Return the smallest template with this much memory; None: only a whole chip may have it."""
    return next((t for t in chip.templates if t.memory >= memory_mib), None)


VNPU_MODE = UserAnnotation(
    name="huawei.com/vnpu-mode",
    parse=str,
    wanted=HAMI_CORE,
    holds="chips are cut in software, on nodes that support it",
    is_known=lambda text: text == HAMI_CORE,
    otherwise="it is left out",
)
SOFT_SLICES_ANNOTATION = "hami-vnpu-core"
"""Annotation of a node: `true` if its chips can be cut in software.

Else the configuration decides.
"""


@cache
def _keys(vendor: str) -> AnnotationKeys:
    return AnnotationKeys(
        register=f"hami.io/node-register-{vendor}",
        handshake=f"hami.io/node-handshake-{vendor}",
        to_allocate=f"hami.io/{vendor}-devices-to-allocate",
        allocated=f"hami.io/{vendor}-devices-allocated",
        # The time, and the templates for the Ascend runtime.
        extra=("predicate-time", f"huawei.com/{vendor}"),
        use_uuids=f"hami.io/use-{vendor}-uuid",
        avoid_uuids=f"hami.io/no-use-{vendor}-uuid",
        choices=(VNPU_MODE,),
        lock=keys.NODE_LOCK,
    )


@dataclass(frozen=True, slots=True)
class Ascend(Vendor):
    """Vendor of one chip, such as `Ascend910B3`."""

    chip: VnpuChip
    config: VnpusConfig
    """Block of the device configuration that defines the chip."""

    default_core_percent = 0

    @property
    def name(self) -> str:
        """Name of the chip."""
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
        """Rules of the engine: chips of one network or one module are taken together."""
        return rules_for(self.name, pairs=self.chip.super_pod)

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """Return which chips the annotations allow, and whether the pod wants soft slices."""
        chosen = Vendor.select(self, annotations)
        soft = VNPU_MODE.read(annotations) == HAMI_CORE
        return replace(chosen, traits={MODE: HAMI_CORE}) if soft else chosen

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """Return the chips in the node's register annotation, with whether software can cut each.

        Raises: InvalidRequest if the annotation is malformed.
        """
        written = keys.annotations_of(node).get(SOFT_SLICES_ANNOTATION)
        soft = self.config.hami_vnpu_core if written is None else written == "true"
        return tuple(
            replace(card, info={**card.info, SOFT_SLICES: soft})
            for card in Vendor.node_devices(self, node)
        )

    @property
    def guarded_variables(self) -> tuple[GuardedVariable, ...]:
        """Return the variable by which the Ascend runtime gives chips."""
        return (ASCEND_VISIBLE,)

    def hide_cards(self, container: Json) -> None:
        """Hide all chips from a container that asks for none, if configured."""
        # A container that asks for another chip must see that chip (HAMi hides it).
        if self.chip.overwrite_env and not any(
            amounts.asks(container, chip.resource_name) for chip in self.config.configs
        ):
            set_env(container, ASCEND_VISIBLE.name, "")

    def plugin_annotations(self, placed: PlacedPod) -> dict[str, str]:
        """Return the annotations with the time, and the templates for the runtime."""
        soft = _soft(placed.selections.get(self.name, Selection()))
        runtime = [self._runtime_entry(each, soft=soft) for each in placed.shares_of(self.name)]
        entries = json.dumps(runtime, separators=(",", ":"), ensure_ascii=False)
        values = (str(int(placed.now.timestamp())), entries)
        return dict(zip(self.keys.extra, values, strict=True))

    def _runtime_entry(self, share: DeviceShare, *, soft: bool) -> dict[str, str | int]:
        """Return one slice in HAMi's order of fields, without zero and empty ones."""
        template = None if soft else template_for(self.chip, share.memory_mib)
        fields: dict[str, str | int] = {
            "UUID": share.uuid,
            "temp": template.name if template else "",
            "memory": share.memory_mib,
            "core": share.core_percent,
        }
        return {name: value for name, value in fields.items() if value}

    def mutate(self, container: Json, pod: Json) -> MutateResult:
        """Write pairs of chips, the memory of a template, and the runtime class.

        Memory is rounded up to a template of the chip, so that the scheduler counts amounts into
        which the chip can be cut.

        Raises: InvalidRequest if the container asks for something that can never be granted.
        """
        chip = self.chip
        request = self.parse_request(container)
        soft = VNPU_MODE.read(keys.annotations_of(pod)) == HAMI_CORE
        if not amounts.asks(container, chip.resource_name, limits_only=True):
            self.hide_cards(container)
            return MutateResult(wants=False)
        count = 0 if request is None else request.count
        count = _in_pairs(container, chip, count) if chip.super_pod else count
        cores = amounts.cores(container, chip.resource_core_name, default=0)
        if cores and not soft:
            # A template has its own cores.
            raise InvalidRequest(
                f"{_where(container)}{chip.resource_core_name} is {cores}: cores can be asked for "
                "only in pods with the annotation huawei.com/vnpu-mode: hami-core"
            )
        if chip.resource_memory_name:
            _write_memory(container, chip, count, soft=soft)
        if chip.runtime_class_name and not pod["spec"].get("runtimeClassName"):
            pod["spec"]["runtimeClassName"] = chip.runtime_class_name
        return MutateResult(wants=True)


def _in_pairs(container: Json, chip: VnpuChip, count: int) -> int:
    """Return the number of chips, rounded up from one to two if two form a module."""
    if count == 1:
        resources = container["resources"]
        for part in ("limits", "requests"):
            if chip.resource_name in (resources.get(part) or {}):
                resources[part][chip.resource_name] = "2"
        return 2
    if count % 2:
        # The exact text of HAMi.
        raise InvalidRequest(f"{chip.common_word} device request must be 1 or 2*n, got {count}")
    return count


def _write_memory(container: Json, chip: VnpuChip, count: int, *, soft: bool) -> None:
    """Write the memory that the container will get of each chip to limits and requests."""
    name = chip.resource_memory_name
    memory_mib = _granted_memory(container, chip, soft=soft)
    # Two chips written for a module may stand for a request of one.
    single = count <= 1 or (chip.super_pod and count == 2)
    if not (single or soft or memory_mib == chip.memory_allocatable):
        raise InvalidRequest(
            f"{_where(container)}{name} is for a slice of one chip: vNPU not supported for "
            f"multiple devices; leave it out or ask for 1 {chip.resource_name}"
        )
    # Rounded down: a unit more would be the next template.
    units = str(memory_mib // max(chip.memory_factor, 1))
    amounts.write(container, {name: units})


def _granted_memory(container: Json, chip: VnpuChip, *, soft: bool) -> int:
    """Return the MiB that the container will get of each chip."""
    name = chip.resource_memory_name
    written = amounts.find(container, name, limits_only=True)
    if written is None:
        return chip.memory_allocatable
    memory_mib = amounts.memory(container, name, factor=chip.memory_factor, limits_only=True)
    if soft:
        return memory_mib
    if memory_mib > chip.memory_capacity:
        raise InvalidRequest(
            f"{_where(container)}{name} {written} is invalid: expected {_choices(chip)}"
        )
    template = template_for(chip, memory_mib)
    return template.memory if template else chip.memory_allocatable


def _choices(chip: VnpuChip) -> str:
    factor = max(chip.memory_factor, 1)
    sizes = [*(t.memory for t in chip.templates), chip.memory_allocatable]
    *others, last = [str(size // factor) for size in sizes]
    return f"{', '.join(others)} or {last}" if others else last


def _where(container: Json) -> str:
    return f"container {container.get('name', '')!r}: "
