"""Pods that `hamictl pending` has from the scheduler: their ResourceClaims are kube-scheduler's.

The ledger has no decision about them, so the question of the metrics service does not know them.
"""

from __future__ import annotations

from collections.abc import Collection

from hamicommon.errors import HamiError

from hamictl.output.terminal import note
from hamictl.scheduler_client import Row, SchedulerClient
from hamictl.settings import Settings
from hamictl.target import find_target

REASON_CODE = "ResourceClaims"
UNKNOWN = ("last_at", "attempt_count", "ahead_count", "trace_id")
"""What kube-scheduler does not show of a pod that waits."""


async def waiting_by_claims(namespace: str, reason: str, known: Collection[str]) -> list[Row]:
    """Rows like those of the question `waiting-pods`, without the pods of `known` uids.

    Where the scheduler can't be asked, a note has the reason.
    """
    scheduler = find_target(Settings()).scheduler
    if not scheduler.url or reason not in ("", REASON_CODE):
        return []
    query = {"namespace": namespace} if namespace else {}
    try:
        rows = await SchedulerClient(scheduler).rows_if_known("/v1/pods-by-claims", **query)
    except HamiError as exc:
        note(f"pods that wait for ResourceClaims are not listed: {exc}")
        return []
    return [dict.fromkeys(UNKNOWN) | row for row in rows or () if row["pod_uid"] not in known]
