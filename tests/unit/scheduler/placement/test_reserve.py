"""Many pods that are placed at the same moment by one replica."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hami_scheduler.deferred import DeferredWrites
from hami_scheduler.ledger.reservations import early as early_reservations
from hami_scheduler.ledger.reservations.early import EarlyReservations
from hami_scheduler.ledger.view import LedgerSnapshotCache
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.decisions.decision import DecisionTrace
from hami_scheduler.placement.decisions.decision_log import DecisionQueue
from hami_scheduler.placement.pod_requests import PodRequests
from hami_scheduler.placement.reserve import MOST_S, Reservations, Reserved
from hami_scheduler.pod_events import Announcer
from hami_scheduler.ports import DecisionRow, PodEvent
from hamicommon import device_config
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import Policy
from hamicommon.errors import Unavailable
from hamicommon.ledger.model import Change, Draft
from hamicommon.testing.pods import FakePodApi
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from tests.unit.scheduler.readable_ledger import ReadableLedger

VENDORS = Vendors.from_config(device_config.load(None))
NODE = NodeName("n")
PODS = 8


class SlowLedger(ReadableLedger):
    """Others run while a reservation is on its way; reads back its cards for the view."""

    def __init__(self, cards: int, slots: int) -> None:
        super().__init__()
        self.uuids = [GpuUuid(f"GPU-{number}") for number in range(cards)]
        for index, uuid in enumerate(self.uuids):
            device = GpuDevice(
                uuid=uuid,
                index=index,
                vendor="NVIDIA",
                type="A100",
                slots=slots,
                memory_mib=1000,
                core_percent=100,
            )
            self.add_card(NODE, device)

    async def reserve(self, draft: Draft) -> Change:
        await asyncio.sleep(0)
        return await super().reserve(draft)


class Nowhere:
    """A log and an event sink that keep nothing."""

    async def record(self, decisions: Sequence[DecisionRow]) -> None:
        del decisions

    def emit(self, event: PodEvent) -> None:
        del event


def pod(number: int) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}
    return {
        "metadata": {"name": f"p{number}", "namespace": "default", "uid": f"u{number}"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


async def placed_at_once(
    ledger: SlowLedger, *, spent_s: float = 0.0
) -> tuple[list[Any], SchedulerInstruments]:
    instruments = SchedulerInstruments()
    reservations, _ = await reserving(ledger, instruments)

    async def one(number: int) -> Any:
        return await placed(reservations, number, spent_s=spent_s)

    return await asyncio.gather(*map(one, range(PODS))), instruments


async def placed(
    reservations: Reservations, number: int, *, spent_s: float = 0.0, early: bool = False
) -> Any:
    body = pod(number)
    trace = DecisionTrace(pod=body, started=time.perf_counter() - spent_s, candidates=1)
    return await reservations.best(pod_request(body, VENDORS), [NODE], trace, early=early)


async def reserving(
    ledger: SlowLedger, instruments: SchedulerInstruments, *, early_answers: bool = False
) -> tuple[Reservations, EarlyReservations]:
    view = LedgerSnapshotCache(ledger, VENDORS.rules)
    await view.refresh()
    early = EarlyReservations(
        ledger,
        view,
        rules=VENDORS.rules,
        has_quota=lambda namespace: False,
        has_agent=lambda node: True,
        on_freed=lambda: None,
        instruments=instruments,
        enabled=early_answers,
    )
    reservations = Reservations(
        view=view,
        store=ledger,
        pods=FakePodApi(),
        requests=PodRequests(vendors=VENDORS, defaults=Policy()),
        reservation_s=60,
        recorder=DecisionQueue(Nowhere(), Announcer(Nowhere()), calm=DeferredWrites().calm),
        instruments=instruments,
        early=early,
    )

    return reservations, early


async def test_pods_that_want_the_same_last_slot_part_after_one_lost_race() -> None:
    found, instruments = await placed_at_once(SlowLedger(cards=PODS, slots=1))

    assert all(isinstance(one, Reserved) for one in found)
    taken = {share.uuid for one in found for c in one.allocation.containers for share in c.shares}
    assert len(taken) == PODS
    assert instruments.replans._value.get() <= PODS


async def test_pods_share_the_chosen_card_as_long_as_it_has_room() -> None:
    found, instruments = await placed_at_once(SlowLedger(cards=2, slots=PODS))

    assert all(isinstance(one, Reserved) for one in found)
    assert instruments.replans._value.get() == 0


async def test_what_does_not_fit_after_a_lost_race_is_refused_and_not_a_conflict() -> None:
    found, _ = await placed_at_once(SlowLedger(cards=PODS - 3, slots=1))

    assert sum(isinstance(one, Reserved) for one in found) == PODS - 3
    assert sum(getattr(one, "refusal", None) is not None for one in found) == 3


async def test_a_plan_that_would_come_after_kube_scheduler_gave_up_is_not_begun() -> None:
    ledger = SlowLedger(cards=1, slots=PODS)

    with pytest.raises(Unavailable, match="no plan is begun after 8 s; the pod is tried again"):
        await placed_at_once(ledger, spent_s=MOST_S + 1)

    assert await ledger.live() == []


async def test_a_slot_that_is_being_taken_is_not_answered_early_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(early_reservations, "CALM_S", 0.0)
    ledger, instruments = SlowLedger(cards=1, slots=1), SchedulerInstruments()
    reservations, early = await reserving(ledger, instruments, early_answers=True)
    writing = asyncio.create_task(early.run())
    try:
        committed = asyncio.create_task(placed(reservations, 0))
        await asyncio.sleep(0)
        second = await placed(reservations, 1, early=True)
        assert isinstance(await committed, Reserved)
        assert getattr(second, "refusal", None) is not None
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    assert instruments.early_answers.labels("broken")._value.get() == 0


async def test_pods_that_are_answered_early_part_without_a_lost_race(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(early_reservations, "CALM_S", 0.0)
    ledger, instruments = SlowLedger(cards=PODS, slots=1), SchedulerInstruments()
    reservations, early = await reserving(ledger, instruments, early_answers=True)
    writing = asyncio.create_task(early.run())
    try:
        found = [await placed(reservations, number, early=True) for number in range(PODS)]
        over = await placed(reservations, PODS, early=True)
        await early.all_written()
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    assert all(isinstance(one, Reserved) for one in found)
    assert getattr(over, "refusal", None) is not None
    assert instruments.early_answers.labels("kept")._value.get() == PODS
    assert instruments.replans._value.get() == 0
    assert len(await ledger.live()) == PODS
