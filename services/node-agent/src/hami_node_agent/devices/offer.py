"""Convert the driver's facts about cards into what the node offers (protocol 5.6)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid

from hami_node_agent.devices.health import Health
from hami_node_agent.devices.mig_partition import MIG, MigOffer

VENDOR = "NVIDIA"
WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """Facts about one card from NVML and sysfs."""

    uuid: GpuUuid
    index: int
    name: str
    memory_mib: int
    numa: int = 0
    minor: int | None = None
    """Number of the card's file /dev/nvidia<minor>."""
    mig: MigOffer | None = None
    """Profiles into which the card can be cut, in operating mode `mig`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Settings for offering a card."""

    split_count: int = 10
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    mode: str = "hami-core"
    """Operating mode: `hami-core`, `whole` (one container per card), or `mig`."""


def product_type(name: str) -> str:
    """Return the type for inventory and annotations, which begins with NVIDIA."""
    return name if name.startswith("NVIDIA") else f"NVIDIA-{name}"


def offered_device(facts: CardFacts, offer: Offer) -> GpuDevice:
    """Return the card as it is registered; scaled amounts are truncated, as in HAMi."""
    if offer.mode == WHOLE:
        offer = Offer(split_count=1, mode=WHOLE)
    if facts.mig is not None:
        # Instances have what the driver gives them: nothing is scaled.
        offer = Offer(split_count=facts.mig.slots, mode=MIG)
    return GpuDevice(
        uuid=facts.uuid,
        index=facts.index,
        vendor=VENDOR,
        type=product_type(facts.name),
        slots=offer.split_count,
        memory_mib=int(facts.memory_mib * offer.memory_scaling),
        core_percent=int(offer.core_scaling * 100),
        numa=facts.numa,
        mode=offer.mode,
        mig_profiles=() if facts.mig is None else facts.mig.profiles,
    )


def with_health(device: GpuDevice, health: Health) -> GpuDevice:
    """Return the card with its health."""
    return replace(device, healthy=health.healthy, health_reason=health.reason)
