"""A ledger with one card, one allocation by limits, a claim of two pods, and one refusal."""

import json
from dataclasses import replace
from typing import Any

from hamicommon.domain.ids import GpuUuid
from hamicommon.k8s.mig import MigReservation, MigSlice, encode_reservations

HALF = MigSlice(profile="2g.20gb", start=4, size=2)


MADE = MigReservation(
    container_index=0,
    device_index=0,
    card=GpuUuid("GPU-1"),
    slice=HALF,
    mig_uuid="MIG-1",
    gpu_instance_id=7,
    compute_instance_id=0,
)


RESERVED = (
    MADE,
    replace(MADE, container_index=1),
    MigReservation(container_index=2, device_index=0, card=MADE.card, slice=HALF),
)


async def fill(db: Any) -> None:
    allocation = "00000000-0000-4000-8000-000000000001"
    await db.execute("INSERT INTO nodes (name, inventory_at) VALUES ('n1', now())")
    await db.execute(
        "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent, "
        "used_slots, used_memory_mib, used_core_percent, ceiling_slots, ceiling_memory_mib, "
        "ceiling_core_percent, healthy) "
        "VALUES ('GPU-1', 'n1', 'NVIDIA', 0, 'A100', 10, 1000, 100, 2, 30, 20, 10, 1000, 100, true)"
    )
    await db.execute(
        "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, "
        "annotations) VALUES ($1, 'u1', 'ns', 'p', 1, 'n1', 'bound', $2)",
        allocation,
        json.dumps({"hami.io/vgpu-mig-allocations": encode_reservations(RESERVED)}),
    )
    shares = [(0, "init", 30), (1, "app", 10), (2, "app", 10)]
    await db.executemany(
        "INSERT INTO allocation_devices (allocation_id, container_index, position, container_name, "
        "role, device_uuid, vendor, memory_mib, core_percent) "
        "VALUES ($1, $2::int, 0, 'c' || $2::int, $3, 'GPU-1', 'NVIDIA', $4, 10)",
        [(allocation, *share) for share in shares],
    )
    await db.execute(
        "INSERT INTO decisions (pod_uid, namespace, pod_name, outcome, reason_counts, repeat_count)"
        " VALUES ('u2', 'ns', 'q', 'refused', '{\"CardInsufficientMemory\": 2}', 3)"
    )
    await _claim_of_two_pods(db)


async def _claim_of_two_pods(db: Any) -> None:
    """Both are reserved, and nothing of it is counted on the card."""
    for number in (2, 3):
        allocation = f"00000000-0000-4000-8000-00000000000{number}"
        await db.execute(
            "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, "
            "origin) VALUES ($1, $2, 'ns', $2, 1, 'n1', 'reserved', 'claim')",
            allocation,
            f"holder-{number}",
        )
        await db.execute(
            "INSERT INTO allocation_claims (allocation_id, container_index, position, claim_uid, "
            "claim_name, request, share_id, device_uuid, vendor, memory_mib, core_percent, slots, "
            "counted) VALUES ($1, 0, 0, 'claim-1', 'shared', 'gpu', 's', 'GPU-1', 'NVIDIA', 10, 0, "
            "1, $2)",
            allocation,
            number == 2,
        )
