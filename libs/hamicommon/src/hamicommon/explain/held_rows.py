"""Convert the ledger's rows of slices into what pods hold of cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hamicommon.domain.allocations import ContainerGrant, DeviceShare, footprints
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.explain.counterfactuals import PodHolding

SliceRow = Mapping[str, Any]
"""One row of `allocation_devices`."""


def grants_of(rows: Sequence[SliceRow]) -> list[ContainerGrant]:
    """Return the pod's containers, one for each slice."""
    return [
        ContainerGrant(
            index=row["container_index"],
            name=row["container_name"],
            role=row["role"],
            shares=(
                DeviceShare(
                    uuid=GpuUuid(row["device_uuid"]),
                    vendor=row["vendor"],
                    memory_mib=row["memory_mib"],
                    core_percent=row["core_percent"],
                    slots=row["slots"],
                ),
            ),
        )
        for row in rows
    ]


def holdings_of(pod: str, node: NodeName, rows: Sequence[SliceRow]) -> tuple[PodHolding, ...]:
    """Return the part of each card that the pod (`namespace/name`) holds."""
    return tuple(
        PodHolding(
            pod=pod,
            node=node,
            uuid=one.uuid,
            slots=one.slots,
            memory_mib=one.memory_mib,
            core_percent=one.core_percent,
            details=tuple(
                row["detail"] for row in rows if row["detail"] and row["device_uuid"] == one.uuid
            ),
        )
        for one in footprints(grants_of(rows))
    )
