"""The vendors that this installation serves, in HAMi's order of registration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hamicommon.deviceconfig import DeviceConfig
from hamicommon.errors import InvalidRequest
from hamicommon.placement.vendor_rules import VendorRules
from hamicommon.vendors.amd import Amd
from hamicommon.vendors.ascend import Ascend
from hamicommon.vendors.awsneuron import AwsNeuron
from hamicommon.vendors.base import Vendor
from hamicommon.vendors.biren import Biren
from hamicommon.vendors.iluvatar import Iluvatar
from hamicommon.vendors.nvidia import Nvidia
from hamicommon.vendors.vastai import Vastai


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
        found: list[Vendor] = []
        if config.nvidia:
            found.append(Nvidia(config.nvidia))
        if config.awsneuron:
            found.append(AwsNeuron(config.awsneuron))
        if config.amd:
            found.append(Amd(config.amd))
        if config.vastai:
            found.append(Vastai(config.vastai))
        if config.biren:
            found.append(Biren(config.biren))
        if config.vnpus and enable_ascend:
            found += [Ascend(chip, config.vnpus) for chip in config.vnpus.configs]
        if enable_iluvatar:
            found += [Iluvatar(chip) for chip in config.iluvatars]
        served = tuple(vendor for vendor in found if vendor.resources.count)
        words = [vendor.word for vendor in served]
        twice = [word for word in words if words.count(word) > 1]
        if twice:
            raise InvalidRequest(f"commonWord {twice[0]!r} is the word of another vendor already")
        return cls(served)

    @property
    def rules(self) -> dict[str, VendorRules]:
        """By word, how the engine judges the vendor's cards."""
        return {vendor.word: vendor.rules for vendor in self.items}

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
