"""Slices of MetaX cards, the vendor `Metax-SGPU`. Facts: protocol 1.8.

A pod may belong to a class: `online` pods are recorded without cores and may share a card only with
other pods of a class, `offline` ones keep away from cards with an online pod. Pods without a class
and offline ones have a QoS policy, which all slices of a card share. The rules about both and the
choice of cards are in `sgpu_fit.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hamicommon.clipping import clip
from hamicommon.device_config import INT32_MAX, MetaxConfig
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import NODE_LOCK, annotations_of, is_true
from hamicommon.k8s.pod_annotations import UserAnnotation, choice, flag, one_of
from hamicommon.k8s.quantities import canonical, parse_int
from hamicommon.k8s.types import Json
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.standard import StandardVendor, device_annotations, unix_ns
from hamicommon.vendors.interface.vendor import (
    NO_ANNOTATIONS,
    Admitted,
    AnnotationKeys,
    Placed,
    ResourceNames,
)
from hamicommon.vendors.metax.sgpu_fit import (
    CLASS,
    NAME,
    OFFLINE,
    ONLINE,
    QOS,
    RULES,
    TOPOLOGY,
    detail_of,
)

DEVICES = "metax-tech.com/gpu-devices-allocated"
TIME = "metax-tech.com/predicate-time"

CLASSES = (ONLINE, OFFLINE)
POLICIES = ("best-effort", "fixed-share", "burst-share")
DEFAULT_POLICY = "best-effort"

APP_CLASS = UserAnnotation(
    name="metax-tech.com/sgpu-app-class",
    parse=choice(*CLASSES),
    wanted=one_of(CLASSES),
    refusal=f"must be set one of [{', '.join(CLASSES)}]",
    holds="class of the pod: cards are shared within a class",
)
QOS_POLICY = UserAnnotation(
    name="metax-tech.com/sgpu-qos-policy",
    parse=choice(*POLICIES),
    wanted=one_of(POLICIES),
    refusal=f"must be set one of [{', '.join(POLICIES)}]",
    holds="cards are shared under one policy; without it best-effort; online pods have none",
)
TOPOLOGY_AWARE = UserAnnotation(
    name="metax-tech.com/sgpu-topology-aware",
    parse=flag,
    wanted="true or false",
    refusal="must be true or false",
    holds="whether cards of one link zone are preferred; the installation's setting without it",
)

KEYS = AnnotationKeys(
    register="metax-tech.com/node-gpu-devices",
    to_allocate="hami.io/metax-sgpu-devices-to-allocate",
    allocated="hami.io/metax-sgpu-devices-allocated",
    use_uuids="metax-tech.com/use-gpuuuid",
    avoid_uuids="metax-tech.com/nouse-gpuuuid",
    extra=(DEVICES, TIME),
    choices=(APP_CLASS, QOS_POLICY, TOPOLOGY_AWARE),
    lock=NODE_LOCK,
)


@dataclass(frozen=True, slots=True)
class MetaxSgpu(StandardVendor):
    """The vendor `Metax-SGPU` (see `interface.vendor.Vendor`)."""

    config: MetaxConfig

    name = NAME
    keys = KEYS
    rules = RULES

    @property
    def resources(self) -> ResourceNames:
        """Names of its extended resources."""
        return ResourceNames(
            count=self.config.resource_v_count_name,
            memory=self.config.resource_v_memory_name,
            core=self.config.resource_v_core_name,
        )

    def parse_request(
        self, container: Json, annotations: Mapping[str, str] = NO_ANNOTATIONS
    ) -> DeviceRequest | None:
        """From limits only; without memory the whole card's, without cores all of them.

        Raises: InvalidRequest naming container, resource, value and what would be right.
        """
        count = amounts.count(container, self.resources.count, limits_only=True)
        if not count:
            return None
        _check_annotations(annotations)
        memory = self._memory_mib(container)
        return DeviceRequest(
            vendor=NAME,
            count=count,
            memory_mib=memory,
            memory_percent=None if memory else 100,
            core_percent=amounts.cores(
                container, self.resources.core, default=100, limits_only=True
            ),
        )

    def _memory_mib(self, container: Json) -> int:
        """A bare number is GiB, one with a unit is bytes, as in HAMi; 0 when none is given.

        Kubernetes stores a bare 1000 as `1k`, which then counts as bytes: such an amount is
        refused, because it is less than a MiB.
        """
        amount = amounts.find(container, self.resources.memory, limits_only=True)
        if amount is None:
            return 0
        where = f"container {container.get('name', '')!r}: {self.resources.memory} is {amount}"
        try:
            text = canonical(str(amount))
            value = parse_int(text)
        except InvalidRequest as exc:
            raise InvalidRequest(f"{where}, which is no quantity: write 4 or 4Gi") from exc
        if value == 0:
            return 0
        mib = None
        if value is not None:
            has_unit = any(character.isalpha() for character in text)
            mib = value // 2**20 if has_unit else value * 1024
        if mib is None or not 0 < mib <= INT32_MAX:
            raise InvalidRequest(
                f"{where}: a whole number of GiB, such as 4, or an amount with a unit of at least "
                "a MiB, such as 2048Mi, is wanted"
            )
        return mib

    def select(self, annotations: Mapping[str, str]) -> Selection:
        """By uuid; class, policy and whether link zones count are traits."""
        pod_class = annotations.get(APP_CLASS.name, "")
        by_default = str(self.config.sgpu_topology_aware).lower()
        aware = is_true(annotations.get(TOPOLOGY_AWARE.name, by_default))
        policy = annotations.get(QOS_POLICY.name, "")
        traits = {
            CLASS: pod_class,
            QOS: "" if pod_class == ONLINE else policy,
            TOPOLOGY: str(aware).lower(),
        }
        return replace(StandardVendor.select(self, annotations), traits=traits)

    def detail_of(self, share: DeviceShare, annotations: Mapping[str, str]) -> Mapping[str, Any]:
        """Return what a slice of a placed pod remembers (see
        `interface.vendor.RestoresDetails`)."""
        return detail_of(self.select(annotations), share.core_percent)

    def node_devices(self, node: Json) -> tuple[GpuDevice, ...]:
        """The cards in the node's annotation; empty when it has none.

        Raises: InvalidRequest when the annotation is malformed.
        """
        text = annotations_of(node).get(KEYS.register, "")
        return _cards(text) if text else ()

    def plugin_alive(self, node: Json) -> bool:
        """While the node reports at least one card."""
        try:
            return bool(self.node_devices(node))
        except InvalidRequest:
            return False

    def pod_annotations(self, placed: Placed) -> dict[str, str]:
        """The slices twice over, the second time as JSON for the vendor's plugin."""
        written = device_annotations(placed, NAME, KEYS)
        if written:
            slices = [
                [
                    _without_zeros(
                        uuid=share.uuid, compute=share.core_percent, vRam=share.memory_mib
                    )
                    for share in container.shares
                    if share.vendor == NAME
                ]
                for container in placed.containers
            ]
            written[DEVICES] = json.dumps(slices, separators=(",", ":"))
            written[TIME] = unix_ns(placed.now)
        return written

    def mutate(self, container: Json, pod: Json) -> Admitted:
        """Writes the default QoS policy on pods that are not online.

        Raises: InvalidRequest when the container or the pod's annotations ask for what cannot be.
        """
        if not amounts.asks(container, self.resources.count, limits_only=True):
            return Admitted(wants=False)
        written = annotations_of(pod)
        request = self.parse_request(container, written)
        pod_class = written.get(APP_CLASS.name)
        if pod_class is not None and (request is None or request.count != 1):
            raise InvalidRequest(
                f"app-class pod must request single device: {self.resources.count} is "
                f"{request.count if request else 0} with {APP_CLASS.name} {clip(pod_class)}"
            )
        if written.get(APP_CLASS.name) != ONLINE and QOS_POLICY.name not in written:
            pod.setdefault("metadata", {})["annotations"] = {
                **written,
                QOS_POLICY.name: DEFAULT_POLICY,
            }
        return Admitted(wants=True)


def _check_annotations(annotations: Mapping[str, str]) -> None:
    """Raises InvalidRequest when the pod's class, policy or flag is none that there is."""
    if APP_CLASS.read(annotations) != ONLINE:
        QOS_POLICY.read(annotations)
    TOPOLOGY_AWARE.read(annotations)


def _without_zeros(**fields: str | int) -> dict[str, str | int]:
    return {name: value for name, value in fields.items() if value}


def _cards(text: str) -> tuple[GpuDevice, ...]:
    try:
        entries: Any = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"{KEYS.register} is not JSON: {exc}") from exc
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidRequest(f"{KEYS.register} is no JSON list of objects")
    return tuple(_card(entry, index) for index, entry in enumerate(entries))


def _card(entry: Mapping[str, Any], index: int) -> GpuDevice:
    uuid = _field(entry, "uuid", "", index)
    if not uuid:
        raise InvalidRequest(f"{KEYS.register}[{index}] has no uuid")
    return GpuDevice(
        uuid=GpuUuid(uuid),
        index=index,
        vendor=NAME,
        type=NAME,
        slots=_field(entry, "totalDevCount", 0, index),
        memory_mib=_field(entry, "totalVRam", 0, index),
        core_percent=_field(entry, "totalCompute", 0, index),
        numa=_field(entry, "numa", 0, index),
        mode="",
        healthy=_field(entry, "healthy", False, index),
        info={
            "QosPolicy": _field(entry, "qosPolicy", "", index),
            "Model": _field(entry, "model", "", index),
            "LinkZone": _field(entry, "linkZone", 0, index),
        },
    )


def _field(entry: Mapping[str, Any], name: str, absent: Any, index: int) -> Any:
    """The field, of the type of `absent`, which stands for one that is not there."""
    value = entry.get(name)
    value = absent if value is None else value
    if type(value) is not type(absent) or (type(value) is int and not -1 <= value <= INT32_MAX):
        raise InvalidRequest(
            f"{name} of {KEYS.register}[{index}] is {value!r}: a value such as {absent!r} is wanted"
        )
    return value
