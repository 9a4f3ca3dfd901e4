"""An allocation as the scheduler reads it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hamicommon.domain.allocations import Allocation, AllocationState
from hamicommon.domain.ids import AllocationId, NodeName, PodUid


def an_allocation(**changes: Any) -> Allocation:
    """Bound to node `n1`, whose agent is ours."""
    values: dict[str, Any] = {
        "id": AllocationId("id"),
        "pod_uid": PodUid("uid"),
        "namespace": "default",
        "pod_name": "p",
        "attempt": 1,
        "node": NodeName("n1"),
        "state": AllocationState.BOUND,
        "containers": (),
        "token": 1,
        "reserved_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return Allocation(**values | changes)
