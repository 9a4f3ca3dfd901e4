"""Questions on pods that wait: their reason, the pods ahead of them, and their requests."""

import json
from datetime import timedelta

import asyncpg
from hamicommon.ledger.questions import answer


async def test_the_pods_that_wait_are_counted_under_their_reason(
    reader: asyncpg.Connection,
) -> None:
    """One pod waits (four_days), though kube-scheduler no longer asks; another one was deleted."""
    reasons = await answer(reader, "pending-reasons", {})
    waiting = await answer(reader, "waiting-pods", {})
    # By the row's own time: the ledger may have been filled long before this case runs.
    tried = await reader.fetchval("SELECT last_at FROM decisions WHERE pod_name = 'deleted'")
    then = (tried + timedelta(seconds=1)).isoformat()
    before = await answer(reader, "waiting-pods", {"at": then, "namespace": "team-01"})

    assert [(row["reason_code"], row["pod_count"]) for row in reasons.rows] == [
        ("CardTypeMismatch", 1)
    ]
    assert [(row["pod_name"], row["ahead_count"]) for row in waiting.rows] == [("waits", 0)]
    listed = await reader.fetch("SELECT pod_name FROM v_pending_reasons")
    assert [row["pod_name"] for row in listed] == ["waits"]
    assert waiting.rows[0]["reason_counts"] == {"CardTypeMismatch": 100}
    assert waiting.unknown["card_count"] == "the decision was recorded without its request"
    # A job of the history may wait at that moment, too.
    assert "deleted" in {row["pod_name"] for row in before.rows}
    tried = await reader.fetchval("SELECT last_at FROM decisions WHERE pod_name = 'older'")
    then = (tried + timedelta(minutes=1)).isoformat()
    before = await answer(reader, "waiting-pods", {"at": then, "namespace": "team-01"})
    assert "older" in {row["pod_name"] for row in before.rows}


async def test_more_cores_than_a_card_has_are_asked_for_as_all_of_them(
    reader: asyncpg.Connection,
) -> None:
    """Placement does the same: admission warns that 130 counts as 100."""
    asked = {"vendor": "NVIDIA", "count": 1, "memory_mib": 1024, "core_percent": 130}
    request = {"containers": [{"name": "c", "role": "app", "requests": [asked]}]}
    change = "UPDATE decisions SET request = $1::jsonb WHERE pod_name = 'waits'"
    before = await reader.fetchval("SELECT request FROM decisions WHERE pod_name = 'waits'")
    await reader.execute(change, json.dumps(request))
    try:
        uid = (await answer(reader, "waiting-pods", {})).rows[0]["pod_uid"]
        ratios = [
            (await answer(reader, name, given)).rows[0]["core_ratio"]
            for name, given in (("waiting-pods", {}), ("why-waiting", {"pod_uid": uid}))
        ]
    finally:
        await reader.execute(change, before)

    assert ratios == [1.0, 1.0]
