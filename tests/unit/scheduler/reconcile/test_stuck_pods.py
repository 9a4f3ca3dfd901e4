"""Reasons why a bound pod waits, from its object and its node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.reconcile.stuck_pods import PREFIX, StuckPodReporter, why_late
from hamicommon.domain.allocations import Allocation
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
        ({}, True, False, "the kubelet of n1 has not taken the pod up"),
        (PULLING, True, True, "the node-agent of n1 is silent"),
        (
            PULLING,
            True,
            False,
            "the kubelet of n1 has taken the pod up (main ContainerCreating), and its node-agent "
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
    """One late row, which somebody else changes while the first look is at it."""

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

    assert ledger.announced == [PREFIX + "the kubelet of n1 has not taken the pod up"]


@pytest.mark.parametrize(
    ("reason", "announced"),
    [("", 1), ("found bound", 1), ("its node has it", 1), ("no such device", 0)],
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
