"""Iluvatar cards: every chip of the configuration is a vendor of its own.

Facts: protocol 1.5. Memory is asked for in units of 256 MiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from hamicommon.device_config import IluvatarChip
from hamicommon.domain.requests import DeviceRequest
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.types import Json
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.registered import RegisteredVendor
from hamicommon.vendors.interface.shares import ShareVendor
from hamicommon.vendors.interface.standard import set_env
from hamicommon.vendors.interface.vendor import Admitted, AnnotationKeys

UNIT_MIB = 256

CONTAINER_ENV = "SOL_CONTINER_NAME"
"""Spelt as the vendor's runtime reads it."""


@cache
def _keys(vendor: str) -> AnnotationKeys:
    return AnnotationKeys(
        register=f"hami.io/node-{vendor}-register",
        handshake=f"hami.io/node-handshake-{vendor}",
        to_allocate=f"hami.io/{vendor}-devices-to-allocate",
        allocated=f"hami.io/{vendor}-devices-allocated",
        use_uuids=f"hami.io/use-{vendor}-uuid",
        avoid_uuids=f"hami.io/no-use-{vendor}-uuid",
        lock=keys.NODE_LOCK,
    )


@dataclass(frozen=True, slots=True)
class Iluvatar(RegisteredVendor, ShareVendor):
    """One chip, such as `MR-V100` (see `interface.vendor.Vendor`).

    Cores of a pod that went through admission may be of all its cards together; the loop takes
    at most 100 of each card.
    """

    config: IluvatarChip

    memory_factor = UNIT_MIB
    default_core_percent = 0

    @property
    def name(self) -> str:
        """The chip's common name."""
        return self.config.common_word

    @property
    def keys(self) -> AnnotationKeys:
        """Names of its annotations."""
        return _keys(self.name)

    def mutate(self, container: Json, pod: Json) -> Admitted:
        """Several cards are taken whole; the runtime learns the container's name.

        Raises: InvalidRequest when the container asks for something that can never be given.
        """
        request = self.parse_request(container)
        if not amounts.asks(container, self.config.resource_count_name, limits_only=True):
            return Admitted(wants=False)
        warnings = self._take_whole(container, request) if request is not None else ()
        name = container.get("name", "")
        if name and all(entry.get("name") != CONTAINER_ENV for entry in container.get("env") or ()):
            set_env(container, CONTAINER_ENV, name)
        return Admitted(wants=True, warnings=warnings)

    def _take_whole(self, container: Json, request: DeviceRequest) -> tuple[str, ...]:
        """Writes all cores of several cards; warns when the container asked for other cores."""
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
