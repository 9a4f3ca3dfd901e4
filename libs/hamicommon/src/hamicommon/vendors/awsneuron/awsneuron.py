"""AWS Neuron devices: whole devices, or NeuronCores of one device or of several whole ones.

Facts: protocol 1.13. In `GpuDevice.core_percent` and `DeviceShare.core_percent` stands a
bitmask of a device's NeuronCores (2 is the second core), so a grant holds only for the device as it
was seen. HAMi takes the number of cores per device from the first node that it meets, and at most
2; here every device knows its own. `fit.py` chooses devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hamicommon.device_config import INT32_MAX, AwsNeuronConfig
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import DeviceRequest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.vendors.awsneuron.fit import BY_CORE, CORES, NAME, RULES, USUAL_CORES, cores_of
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.standard import (
    MAX_CARDS,
    StandardVendor,
    device_annotations,
    listed,
)
from hamicommon.vendors.interface.vendor import (
    NO_ANNOTATIONS,
    Admitted,
    AnnotationKeys,
    Placed,
    ResourceNames,
)

IDS = "AWS_NEURON_IDS"
RESOURCE_TYPE = "NEURON_RESOURCE_TYPE"
ALLOC_TIME = "NEURON_ALLOC_TIME"
ALLOCATED = "NEURON_ALLOCATED"
NODE = "aws.amazon.com/predicate-node"

_KEYS = AnnotationKeys(
    allocated="hami.io/aws-neuron-devices-allocated",
    # Of no effect on a request for several devices.
    use_uuids="aws.amazon.com/use-neuron-uuid",
    avoid_uuids="aws.amazon.com/nouse-neuron-uuid",
    extra=(IDS, RESOURCE_TYPE, ALLOC_TIME, ALLOCATED, NODE),
)
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_MAX_CORES = 31
"""Cores of a device: its mask is an int32; the largest devices have 8."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AwsNeuron(StandardVendor):
    """The vendor `AWSNeuron` (see `interface.vendor.Vendor`)."""

    config: AwsNeuronConfig

    name = NAME
    keys = _KEYS
    rules = RULES

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
        """Devices, or cores where no devices are asked for; None when the container asks for none.

        `count` and `core_percent` are what they come to on devices of two cores, as HAMi counts
        them for quotas; the trait `cores` is what was asked for.

        Raises: InvalidRequest naming container, resource, value and what would be right.
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
        """The devices that the kubelet reports; empty when it reports none.

        Raises: InvalidRequest when it reports no whole number, or absurdly many.
        """
        metadata = node.get("metadata") or {}
        name = metadata.get("name", "")
        count = listed(node, "capacity", self.config.resource_count_name)
        cores = listed(node, "capacity", self.config.resource_core_name)
        each = (cores // count if count else 0) or USUAL_CORES
        if count > MAX_CARDS or each > _MAX_CORES:
            raise InvalidRequest(
                f"node {name}: a capacity of {count} {self.config.resource_count_name} and {cores} "
                f"{self.config.resource_core_name}: at most {MAX_CARDS} devices of "
                f"{_MAX_CORES} cores are wanted"
            )
        instance_type = (metadata.get("labels") or {}).get(_INSTANCE_TYPE, "")
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

    def pod_annotations(self, placed: Placed) -> dict[str, str]:
        """The slices, and the device or core indexes for the Neuron plugin."""
        written = device_annotations(placed, NAME, _KEYS)
        if not written:
            return {}
        ids = list[int]()
        for share in (s for c in placed.containers for s in c.shares if s.vendor == NAME):
            device = placed.cards[share.uuid]
            if BY_CORE in share.detail:
                written[RESOURCE_TYPE] = self.config.resource_core_name
                cores = cores_of(device.core_percent)
                bits = (bit for bit in range(cores) if share.core_percent >> bit & 1)
                ids.extend(cores * device.index + bit for bit in bits)
            else:
                ids.append(device.index)
        nanoseconds = (placed.now - _EPOCH) // timedelta(microseconds=1) * 1000
        return written | {
            IDS: ",".join(map(str, ids)),
            ALLOC_TIME: str(nanoseconds),
            ALLOCATED: "false",
            NODE: placed.node,
        }

    def mutate(self, container: Json, pod: Json) -> Admitted:
        """Changes nothing.

        Raises: InvalidRequest when the container asks for something that can never be given.
        """
        names = (self.config.resource_count_name, self.config.resource_core_name)
        asked = next((x for x in names if amounts.find(container, x) is not None), None)
        if asked is None:
            return Admitted(wants=False)
        if self.parse_request(container) is None:
            raise InvalidRequest(
                f"container {container.get('name', '')!r}: {asked} must be greater than 0"
            )
        return Admitted(wants=True)
