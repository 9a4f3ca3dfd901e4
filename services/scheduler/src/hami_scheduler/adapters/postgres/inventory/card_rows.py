"""A card as its row has it, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hamicommon.domain.devices import DeviceUsage, GpuDevice, MigProfile
from hamicommon.domain.ids import GpuUuid, NodeName

from hami_scheduler.ports.ledger import LedgerCard


def card_columns(node: NodeName, device: GpuDevice) -> tuple[Any, ...]:
    """The parameters of `INSERT_CARD`."""
    return (
        device.uuid,
        node,
        device.vendor,
        device.index,
        device.type,
        device.slots,
        device.memory_mib,
        device.core_percent,
        device.numa,
        device.mode,
        device.healthy,
        device.health_reason,
        [asdict(profile) for profile in device.mig_profiles],
        dict(device.info),
    )


def ledger_card(row: Any) -> LedgerCard:
    """A row of `SELECT_CARDS`, with what is granted on it."""
    return LedgerCard(
        node=NodeName(row["node"]),
        version=row["version"],
        usage=DeviceUsage(
            device=device_of(row),
            used_slots=row["used_slots"],
            used_memory_mib=row["used_memory_mib"],
            used_core_percent=row["used_core_percent"],
            cordoned=row["cordoned"],
            holdings=tuple(row["holdings"]),
        ),
    )


def device_of(row: Any) -> GpuDevice:
    """The card of a row of `SELECT_CARDS`."""
    return GpuDevice(
        uuid=GpuUuid(row["uuid"]),
        index=row["index"],
        vendor=row["vendor"],
        type=row["type"],
        slots=row["slots"],
        memory_mib=row["memory_mib"],
        core_percent=row["core_percent"],
        numa=row["numa"],
        mode=row["mode"],
        healthy=row["healthy"],
        health_reason=row["health_reason"],
        mig_profiles=_mig_profiles(row["mig_profiles"]),
        info=row["info"],
    )


_UNREADABLE = (
    MigProfile(name="unreadable", memory_mib=0, core_percent=0, slice_count=0, placements=()),
)
"""Holds nothing, and differs from all that a node reports: its next report is written."""


def _mig_profiles(items: Sequence[Any]) -> tuple[MigProfile, ...]:
    try:
        return tuple(
            MigProfile(
                **{**item, "placements": tuple((start, size) for start, size in item["placements"])}
            )
            for item in items
        )
    except (TypeError, ValueError, KeyError):
        return _UNREADABLE
