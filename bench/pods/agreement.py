"""Comparison of ledger, claims and pods after a round: each slice once, none too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import asyncpg
from hamicommon.dra.devices import CORES, MEMORY, device_name, mib_of_bytes
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.quantities import parse_exact
from hamicommon.k8s.types import Json
from hamicommon.ledger.invariants import INVARIANTS

_GRANTS = """
SELECT a.pod_uid, a.pod_name, a.node, x.device_uuid, x.memory_mib, x.core_percent
  FROM allocations a JOIN allocation_devices x ON x.allocation_id = a.id
 WHERE a.ended_at IS NULL AND a.origin = 'claim'
"""
_PODS = "/api/v1/namespaces/default/pods"
_CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

Slice = tuple[str, str, str, int, int]
"""Pod uid, node, device, MiB and percent of cores."""


async def differences(api: KubeApi, postgres_dsn: str) -> list[str]:
    """One sentence for each pod whose slices differ, and each broken rule of the ledger.

    Empty if there is none.
    """
    connection = await asyncpg.connect(postgres_dsn)
    try:
        found = [
            f"{name}: {row[0]}"
            for name, query in INVARIANTS.items()
            for row in await connection.fetch(query)
        ]
        granted = sorted(_of_grant(row) for row in await connection.fetch(_GRANTS))
    finally:
        await connection.close()
    pods = {pod["metadata"]["uid"]: pod for pod in (await api.get(_PODS))["items"]}
    claims = (await api.get(_CLAIMS))["items"]
    allocated = sorted(each for claim in claims for each in _of_claim(claim, pods))
    found += [f"in the ledger alone: {each}" for each in _beyond(granted, allocated)]
    found += [f"in the claims alone: {each}" for each in _beyond(allocated, granted)]
    held = {each[0] for each in granted}
    running = {uid for uid, pod in pods.items() if _claims_and_runs(pod)}
    return found + [f"pod {uid} runs, or its slice is granted, not both" for uid in held ^ running]


def _beyond(some: list[Slice], others: list[Slice]) -> Iterable[Slice]:
    return (Counter(some) - Counter(others)).elements()


def _of_grant(row: Any) -> Slice:
    device = device_name(row["device_uuid"])
    return row["pod_uid"], row["node"], device, row["memory_mib"], row["core_percent"]


def _of_claim(claim: Json, pods: dict[str, Json]) -> list[Slice]:
    status = claim.get("status") or {}
    results = (status.get("allocation") or {}).get("devices", {}).get("results", ())
    return [
        (
            str(holder["uid"]),
            str((pods.get(holder["uid"]) or {"spec": {}})["spec"].get("nodeName", "")),
            str(result["device"]),
            mib_of_bytes(int(parse_exact(result["consumedCapacity"][MEMORY]))),
            int(parse_exact(result["consumedCapacity"][CORES])),
        )
        for result in results
        for holder in status.get("reservedFor") or ()
    ]


def _claims_and_runs(pod: Json) -> bool:
    return bool(pod["spec"].get("resourceClaims")) and pod["status"].get("phase") == "Running"
