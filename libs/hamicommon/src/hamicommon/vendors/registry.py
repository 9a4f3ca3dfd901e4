"""The vendors that this installation serves, in HAMi's order of registration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hamicommon.deviceconfig import DeviceConfig
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.base import Vendor
from hamicommon.vendors.nvidia import Nvidia


@dataclass(frozen=True, slots=True)
class Vendors:
    """All vendors, by word and in order."""

    items: tuple[Vendor, ...]

    @classmethod
    def from_config(
        cls, config: DeviceConfig, *, enable_ascend: bool = False, enable_iluvatar: bool = False
    ) -> Vendors:
        """The vendors that the configuration describes; two families only where enabled, as HAMi.

        Raises: InvalidRequest when two of them have one word.
        """
        return cls((Nvidia(config.nvidia),) if config.nvidia else ())

    def __iter__(self) -> Iterator[Vendor]:
        return iter(self.items)

    def __getitem__(self, word: str) -> Vendor:
        """The vendor of that word.

        Raises: InvalidRequest when there is none.
        """
        for vendor in self.items:
            if vendor.word == word:
                return vendor
        known = ", ".join(vendor.word for vendor in self.items)
        raise InvalidRequest(f"there is no vendor {word!r}; known are {known}")
