"""Reasons why a bound pod waits, from its object and its node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.ledger import OpenWait
from hami_scheduler.reconcile.ended_waits import EndedWaits
from hami_scheduler.reconcile.stuck_pods import PREFIX, StuckPodReporter, why_late
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef

from tests.unit.scheduler.allocations import an_allocation

PULLING = {
    "containerStatuses": [
        {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}},
        {"name": "side", "state": {"running": {}}},
    ]
}


@pytest.mark.parametrize(
    ("status", "has_agent", "silent", "reason"),
    [
        ({}, True, False, "the kubelet of n1 has not picked up the pod"),
        (PULLING, True, True, "the node-agent of n1 is silent"),
        (
            PULLING,
            True,
            False,
            "the kubelet of n1 has picked up the pod (main ContainerCreating), but its node-agent "
            "has not reported that every container has its cards",
        ),
        (PULLING, False, False, "its containers have not started on n1: main ContainerCreating"),
    ],
    ids=["not-admitted", "silent-agent", "report-missing", "other-plugin"],
)
def test_the_reason_is_what_is_known(
    status: dict[str, Any], has_agent: bool, silent: bool, reason: str
) -> None:
    found = why_late({"status": status}, an_allocation(has_agent=has_agent), agent_silent=silent)

    assert found == reason


class Ledger:
    """Ledger with one late row, which another caller changes during the first check."""

    def __init__(self) -> None:
        self.row = an_allocation(has_agent=True)
        self.overtaken = True
        self.announced: list[str] = []

    async def late(self, late_s: float) -> list[Allocation]:
        return [self.row]

    async def get(self, name: str, pod: str = "") -> Any:
        if pod:
            return {"metadata": {"uid": self.row.pod_uid}}
        if self.overtaken:
            self.overtaken = False
            self.row = replace(self.row, reason="")
            return replace(self.row, token=2)
        return self.row

    async def advance(self, step: Any) -> object:
        return object()

    def announce(self, pod: PodRef, reason: str, message: str, **about: Any) -> None:
        self.announced.append(message)


def watch_of(ledger: Any) -> StuckPodReporter:
    return StuckPodReporter(
        ledger=ledger,
        pods=ledger,
        silent=frozenset,
        announcer=ledger,
        instruments=SchedulerInstruments(),
        late_s=60.0,
    )


async def test_a_row_that_changed_under_the_first_look_is_reported_at_the_next() -> None:
    ledger = Ledger()
    watch = watch_of(ledger)

    assert [await watch.once(), await watch.once(), await watch.once()] == [1, 1, 1]

    assert ledger.announced == [PREFIX + "the kubelet of n1 has not picked up the pod"]


@pytest.mark.parametrize(
    ("reason", "announced"),
    [("", 1), ("found bound", 1), ("reported by its node", 1), ("no such device", 0)],
    ids=["bound by /bind", "found by a comparison", "its node's reason", "the node's own message"],
)
async def test_a_late_pod_is_reported_however_it_was_bound_unless_its_node_gave_a_reason(
    reason: str, announced: int
) -> None:
    ledger = Ledger()
    ledger.overtaken = False
    ledger.row = replace(ledger.row, reason=reason)

    await watch_of(ledger).once()

    assert len(ledger.announced) == announced


# --- whether a refused pod still waits is what the pod watch shows, not how old its refusal is


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
