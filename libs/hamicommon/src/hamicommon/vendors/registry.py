"""Configured vendors, in HAMi's order of registration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hamicommon.device_config import DeviceConfig
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.placement.vendor_policy import VendorRules
from hamicommon.vendors.ascend import Ascend
from hamicommon.vendors.awsneuron import AwsNeuron
from hamicommon.vendors.enflame import EnflameDrs, EnflameGcu
from hamicommon.vendors.interface.vendor import Vendor
from hamicommon.vendors.kunlun import KunlunVxpu, KunlunXpu
from hamicommon.vendors.metax import MetaxGpu, MetaxSgpu
from hamicommon.vendors.nvidia.nvidia import Nvidia
from hamicommon.vendors.shares import Amd, Cambricon, Hygon, Iluvatar, Mthreads
from hamicommon.vendors.slots import Biren, Vastai

_MAX_REMEMBERED = 1024
"""Maximum number of cached sets of resource names."""

_CLASSES: tuple[tuple[str, tuple[Callable[[Any], Vendor], ...]], ...] = (
    ("nvidia", (Nvidia,)),
    ("cambricon", (Cambricon,)),
    ("hygon", (Hygon,)),
    ("enflame", (EnflameGcu, EnflameDrs)),
    ("mthreads", (Mthreads,)),
    ("metax", (MetaxGpu, MetaxSgpu)),
    ("kunlun", (KunlunXpu, KunlunVxpu)),
    ("awsneuron", (AwsNeuron,)),
    ("amd", (Amd,)),
    ("vastai", (Vastai,)),
    ("biren", (Biren,)),
)
"""Vendors that need no flag: block of the configuration -> class, in HAMi's order.

Two for a block where whole cards and slices differ.
"""


@dataclass(frozen=True, slots=True)
class Vendors:
    """Configured vendors, by name and in order."""

    items: tuple[Vendor, ...]
    memory: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Cache for values computed from the vendors; each user must bound its part."""

    @classmethod
    def from_config(
        cls, config: DeviceConfig, *, enable_ascend: bool = False, enable_iluvatar: bool = False
    ) -> Vendors:
        """Return the configured vendors; two families need a flag, as in HAMi.

        Raises: InvalidRequest when two of them have one name.
        """
        found = [
            vendor(block)
            for name, vendors in _CLASSES
            if (block := getattr(config, name))
            for vendor in vendors
        ]
        if config.vnpus and enable_ascend:
            found += [Ascend(chip, config.vnpus) for chip in config.vnpus.configs]
        if enable_iluvatar:
            found += [Iluvatar(chip) for chip in config.iluvatars]
        served = tuple(vendor for vendor in found if vendor.resources.count)
        names = [vendor.name for vendor in served]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise InvalidRequest(f"commonWord {twice[0]!r} names another vendor already")
        return cls(served)

    @property
    def rules(self) -> dict[str, VendorRules]:
        """Rules of the engine by vendor's name."""
        return {vendor.name: vendor.rules for vendor in self.items}

    @property
    def resource_names(self) -> tuple[str, ...]:
        """Extended resources that pods may request, in order, each once.

        Two vendors may share one (a family's whole cards and slices). kube-scheduler must ask us
        about pods that name any of these, and the API server our webhook.
        """
        return tuple(dict.fromkeys(name for item in self.items for name in item.resources.all()))

    @property
    def change_every_pod(self) -> bool:
        """Whether admission changes even pods that ask for nothing.

        Protocol 1.1: `overwriteEnv`, a core policy.
        """
        return any(map(_changes_every_container, self.items))

    def concerned_by(self, container: Json) -> tuple[Vendor, ...]:
        """Return the vendors that may change the container, in order.

        Those are the vendors of which it names a resource, and those that change every container.
        """
        resources = container.get("resources") or {}
        named = frozenset((*(resources.get("limits") or ()), *(resources.get("requests") or ())))
        known: tuple[Vendor, ...] | None = self.memory.get(named)
        if known is None:
            if len(self.memory) > _MAX_REMEMBERED:
                self.memory.clear()
            known = tuple(
                vendor
                for vendor in self.items
                if not named.isdisjoint(vendor.resources.all()) or _changes_every_container(vendor)
            )
            self.memory[named] = known
        return known

    def __iter__(self) -> Iterator[Vendor]:
        return iter(self.items)

    def __getitem__(self, name: str) -> Vendor:
        """Return the vendor of that name.

        Raises: InvalidRequest when there is none.
        """
        for vendor in self.items:
            if vendor.name == name:
                return vendor
        known = ", ".join(vendor.name for vendor in self.items)
        raise InvalidRequest(f"there is no vendor {name!r}; known are {known}")


def _changes_every_container(vendor: Vendor) -> bool:
    container: Json = {"name": "c"}
    pod: Json = {"metadata": {}, "spec": {"containers": [container]}}
    vendor.mutate(container, pod)
    return pod != {"metadata": {}, "spec": {"containers": [{"name": "c"}]}}
