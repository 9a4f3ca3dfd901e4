"""AWS Neuron devices: whole ones, or NeuronCores of one device or of several whole ones.

Facts: protocol 1.13. `GpuDevice.core_percent` and `DeviceShare.core_percent` hold a bitmask of a
device's NeuronCores (2 is the second core), so a grant is valid only for the device as it was seen.
HAMi takes the number of cores per device from the first node that it meets, and at most 2; here
every device has its own number.

One device: the first in order with enough free cores. Several: wholly free devices that lie side by
side, because collectives run over the ring between neighbours. A request for cores counts two to a
slice; devices with more cores give several slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hamicommon.device_config import INT32_MAX, AwsNeuronConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.placement.rules import NODE_INSUFFICIENT, NUMA_NOT_FIT, REASONS, Rule
from hamicommon.placement.vendor_policy import Chosen, Need, NodeAsk, NotChosen, VendorRules, tally
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.vendor import (
    MAX_CARDS,
    NO_ANNOTATIONS,
    AnnotationKeys,
    MutateResult,
    PlacedPod,
    ResourceNames,
    Vendor,
    listed_amount,
    unix_ns,
)

NAME = "AWSNeuron"

CORES = "cores"
"""Trait of a request: the number of NeuronCores; absent if it asks for whole devices."""

BY_CORE = "neuroncore"
"""Key in the detail of a slice that was requested by cores."""

USUAL_CORES = 2
"""Cores of a device (Trainium1, Inferentia2) while none is known, as in HAMi."""

_ALIGNED_SIZES = frozenset({1, 4, 8, 16})
"""Numbers of neighbours that may be granted together on other than Inferentia instances."""

_MAX_CORES = 31
"""Maximum cores of a device: the mask is an int32. The largest devices have 8."""


def cores_of(mask: int) -> int:
    """Return the number of cores in a mask."""
    return mask.bit_count()


def choose_devices(ask: NodeAsk) -> Chosen | NotChosen:
    """Choose one device with enough free cores, or neighbouring devices that are wholly free."""
    if not ask.cards:
        return NotChosen(uncounted=NODE_INSUFFICIENT)
    each = min(cores_of(card.device.core_percent) for card in ask.cards)
    wanted = _asked_cores(ask.request)
    if wanted is None:
        count, cores = ask.request.count, None
    elif wanted <= each:
        count, cores = 1, wanted
    elif wanted % each or each % USUAL_CORES:
        return NotChosen(
            reasons={REASONS[Rule.CORES]: len(ask.cards)},
            limit=f"as whole devices of {each} cores",
            fitting=wanted // each * each // USUAL_CORES,
        )
    else:
        count, cores = wanted // each, None
    if count > len(ask.cards):
        return NotChosen(uncounted=NODE_INSUFFICIENT)
    if count > 1:
        return _neighbours(ask, count)
    return _one_device(ask, cores)


def _one_device(ask: NodeAsk, cores: int | None) -> Chosen | NotChosen:
    """Return the lowest free cores of the first device that has `cores` free (None: all cores)."""
    rules = list(ask.rules)
    for place, card in enumerate(ask.cards):
        if rules[place] != Rule.FITS:
            continue
        all_cores = card.device.core_percent
        mask = _lowest(all_cores & ~card.used_core_percent, cores or cores_of(all_cores))
        if mask is not None:
            return Chosen(shares=_shares(card.device, mask, ask.request))
        rules[place] = Rule.CORES
    refused = {card.device.uuid: rule for card, rule in zip(ask.cards, rules, strict=True)}
    return NotChosen(reasons=tally(rules), refused=refused)


def _neighbours(ask: NodeAsk, count: int) -> Chosen | NotChosen:
    """Return the first run of `count` free devices by index.

    Uuid annotations do not apply (1.0.2).
    """
    by_index = sorted(zip(ask.cards, ask.rules, strict=True), key=lambda pair: pair[0].device.index)
    free = [card.used_slots == 0 and rule in (Rule.FITS, Rule.UUID) for card, rule in by_index]
    start = _run(by_index[0][0], free, count)
    if start is not None:
        run = [card.device for card, _ in by_index[start : start + count]]
        return Chosen(
            shares=tuple(
                share
                for device in run
                for share in _shares(device, device.core_percent, ask.request)
            )
        )
    fewer = (n for n in range(count - 1, 0, -1) if _run(by_index[0][0], free, n) is not None)
    return NotChosen(
        reasons={NUMA_NOT_FIT: 1},
        refused={
            card.device.uuid: Rule.IN_USE if card.used_slots else Rule.FITS
            for card, rule in by_index
            if rule in (Rule.FITS, Rule.UUID)
        },
        limit="as free neighbours",
        fitting=next(fewer, 0) * ask.request.count // count,
    )


def _run(first: DeviceUsage, free: Sequence[bool], count: int) -> int | None:
    """Return the index at which the first run of `count` free devices begins."""
    starts = _starts(first, len(free), count)
    fitting = (n for n in starts if n + count <= len(free) and all(free[n : n + count]))
    return next(fitting, None)


def _starts(first: DeviceUsage, devices: int, count: int) -> Sequence[int]:
    """Return the indexes at which a run may begin."""
    if "inf" in str(first.device.info.get("AWSNodeType", "")).lower():
        return range(devices)
    return range(0, devices, count) if count in _ALIGNED_SIZES else ()


def _lowest(free: int, cores: int) -> int | None:
    """Return a mask of the lowest `cores` bits set in `free`; None if fewer are set."""
    mask = 0
    for _ in range(cores):
        lowest = free & -free
        if not lowest:
            return None
        mask |= lowest
        free ^= lowest
    return mask


def _shares(device: GpuDevice, mask: int, request: DeviceRequest) -> tuple[DeviceShare, ...]:
    """Return shares of one device's cores, in one slice or two per slice, as requested."""
    masks = [mask]
    if CORES in request.traits and cores_of(mask) > USUAL_CORES:
        masks = []
        while mask:
            pair = _lowest(mask, USUAL_CORES) or mask
            masks.append(pair)
            mask ^= pair
    return tuple(
        DeviceShare(
            uuid=device.uuid,
            vendor=NAME,
            memory_mib=0,
            core_percent=part,
            detail={BY_CORE: True} if CORES in request.traits else {},
        )
        for part in masks
    )


def _asked_cores(request: DeviceRequest) -> int | None:
    cores = request.traits.get(CORES)
    return None if cores is None else int(cores)


def _least_mask(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """Return a mask with the fewest cores that one slice needs; only the number of set bits counts.

    The chooser counts the bits.
    """
    each = cores_of(card.core_percent)
    wanted = _asked_cores(request)
    return Need(0, (1 << min(each if wanted is None else wanted, each)) - 1)


@dataclass(frozen=True, slots=True)
class AwsNeuron(Vendor):
    """Vendor `AWSNeuron`."""

    config: AwsNeuronConfig

    name = NAME
    keys = AnnotationKeys(
        allocated="hami.io/aws-neuron-devices-allocated",
        # These two have no effect on a request for several devices.
        use_uuids="aws.amazon.com/use-neuron-uuid",
        avoid_uuids="aws.amazon.com/nouse-neuron-uuid",
        extra=(
            "AWS_NEURON_IDS",
            "NEURON_RESOURCE_TYPE",
            "NEURON_ALLOC_TIME",
            "NEURON_ALLOCATED",
            "aws.amazon.com/predicate-node",
        ),
    )
    rules = VendorRules(
        order=(
            Rule.NOT_HEALTHY,
            Rule.CORDONED,
            Rule.UUID,
            Rule.SLOTS,
            Rule.MUTEX,
            Rule.CORES,
        ),
        need=_least_mask,
        # A slice has at most two cores, and a device may have more.
        reuses_card=True,
        chooser=choose_devices,
        chooser_rules=(Rule.IN_USE,),
        chooser_decides=True,
        exact=True,
    )

    @property
    def resources(self) -> ResourceNames:
        """Names of its extended resources."""
        core = self.config.resource_core_name
        return ResourceNames(
            count=self.config.resource_count_name, core=core, alone=(core,) if core else ()
        )

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """Return the requested devices, or cores if no devices are requested; None if neither is.

        `count` and `core_percent` are the equivalent on devices of two cores, as HAMi counts them
        for quotas; the trait `cores` is the requested number.

        Raises: InvalidRequest naming container, resource, value and the expected value.
        """
        if amounts.find(container, self.config.resource_count_name) is not None:
            count = amounts.count(container, self.config.resource_count_name)
            if not count:
                return None
            return DeviceRequest(vendor=NAME, count=count, core_percent=USUAL_CORES)
        cores = self._cores(container)
        if not cores:
            return None
        return DeviceRequest(
            vendor=NAME,
            count=max(cores // USUAL_CORES, 1),
            core_percent=min(cores, USUAL_CORES),
            traits={CORES: str(cores)},
        )

    def _cores(self, container: Json) -> int | None:
        wanted = f"1 or a multiple of {USUAL_CORES} NeuronCores"
        name = self.config.resource_core_name
        cores = amounts.whole(container, name, top=INT32_MAX, wanted=wanted)
        if cores and cores > USUAL_CORES and cores % USUAL_CORES:
            raise InvalidRequest(
                f"container {container.get('name', '')!r}: {name} must be 1 or a multiple of "
                f"{USUAL_CORES}, got {cores}"
            )
        return cores

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """Return the devices that the kubelet reports; empty if it reports none.

        Raises: InvalidRequest if it reports no whole number, or absurdly many.
        """
        metadata = node.get("metadata") or {}
        name = metadata.get("name", "")
        count = listed_amount(node, "capacity", self.config.resource_count_name)
        cores = listed_amount(node, "capacity", self.config.resource_core_name)
        each = (cores // count if count else 0) or USUAL_CORES
        if count > MAX_CARDS or each > _MAX_CORES:
            raise InvalidRequest(
                f"node {name}: a capacity of {count} {self.config.resource_count_name} and {cores} "
                f"{self.config.resource_core_name}: expected at most {MAX_CARDS} devices "
                f"of {_MAX_CORES} cores"
            )
        instance_type = (metadata.get("labels") or {}).get("node.kubernetes.io/instance-type", "")
        return tuple(
            GpuDevice(
                uuid=GpuUuid(f"{name}-{NAME}-{index}"),
                index=index,
                vendor=NAME,
                type=NAME,
                slots=each,
                memory_mib=0,
                core_percent=(1 << each) - 1,
                mode="",
                info={"AWSNodeType": instance_type},
            )
            for index in range(count)
        )

    def plugin_annotations(self, placed: PlacedPod) -> dict[str, str]:
        """Return the annotations with device or core indexes."""
        written: dict[str, str] = {}
        ids = list[int]()
        for share in placed.shares_of(NAME):
            device = placed.cards[share.uuid]
            if BY_CORE in share.detail:
                written["NEURON_RESOURCE_TYPE"] = self.config.resource_core_name
                cores = cores_of(device.core_percent)
                bits = (bit for bit in range(cores) if share.core_percent >> bit & 1)
                ids.extend(cores * device.index + bit for bit in bits)
            else:
                ids.append(device.index)
        return written | {
            "AWS_NEURON_IDS": ",".join(map(str, ids)),
            "NEURON_ALLOC_TIME": unix_ns(placed.now),
            "NEURON_ALLOCATED": "false",
            "aws.amazon.com/predicate-node": placed.node,
        }

    def mutate(self, container: Json, pod: Json) -> MutateResult:
        """Change nothing.

        Raises: InvalidRequest if the container asks for something that can never be granted.
        """
        names = (self.config.resource_count_name, self.config.resource_core_name)
        asked = next((x for x in names if amounts.find(container, x) is not None), None)
        if asked is None:
            return MutateResult(wants=False)
        if self.parse_request(container) is None:
            raise InvalidRequest(
                f"container {container.get('name', '')!r}: {asked} must be greater than 0"
            )
        return MutateResult(wants=True)
