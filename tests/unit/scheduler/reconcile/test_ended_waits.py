"""Whether a refused pod still waits is what the pod watch shows, not how old its refusal is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hami_scheduler.ports.ledger import OpenWait
from hami_scheduler.reconcile.ended_waits import EndedWaits
from hamicommon.domain.ids import PodUid


class Waits:
    """Port DecisionLog: pods by uid, each with whether the watch must have shown it."""

    def __init__(self, **is_watched: bool) -> None:
        self.is_watched = is_watched
        self.ended: dict[str, str] = {}

    async def open_waits(self) -> list[OpenWait]:
        return [
            OpenWait(PodUid(uid), watched)
            for uid, watched in self.is_watched.items()
            if uid not in self.ended
        ]

    async def end_waits(self, ends: Mapping[PodUid, str]) -> None:
        self.ended |= ends


def a_pod(uid: str = "u", **changes: Any) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": uid, "uid": uid} | changes.pop("metadata", {})
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Pending"}} | changes


def waits_of(ledger: Waits, *pods: dict[str, Any], listed: bool = True) -> EndedWaits:
    return EndedWaits(ledger, pods=lambda: pods, listed=lambda: listed)


@pytest.mark.parametrize(
    ("pod", "end"),
    [
        (a_pod(), None),
        (a_pod(metadata={"deletionTimestamp": "2026-11-20T10:00:00Z"}), "deleted"),
        (a_pod(spec={"nodeName": "n1"}), "bound"),
        (a_pod(status={"phase": "Failed"}), "finished"),
        # A pod of the same name that was made since.
        (a_pod("v"), "gone"),
    ],
    ids=["waits", "terminating", "bound", "failed", "namesake"],
)
async def test_a_wait_ends_as_the_pods_object_shows(pod: dict[str, Any], end: str | None) -> None:
    ledger = Waits(u=True)

    await waits_of(ledger, pod).once()

    assert ledger.ended == ({} if end is None else {"u": end})


async def test_a_pod_whose_refusal_is_recorded_after_its_deletion_waits_no_longer() -> None:
    ledger = Waits()
    waits = waits_of(ledger)
    waits.on_delete(a_pod())
    assert await waits.once() == 0

    ledger.is_watched["u"] = False

    assert await waits.once() == 1
    assert ledger.ended == {"u": "deleted"}


async def test_a_new_pod_that_the_watch_has_not_shown_yet_waits() -> None:
    ledger = Waits(u=False)

    await waits_of(ledger).once()

    assert ledger.ended == {}


async def test_nothing_is_known_of_pods_before_they_were_listed() -> None:
    ledger = Waits(u=True)

    await waits_of(ledger, listed=False).once()

    assert ledger.ended == {}
