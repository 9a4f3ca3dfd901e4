"""Reports of a node that arrive while the binding is in progress."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from hami_scheduler.bus.reports import GrantReports
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_ending import GONE
from hamicommon.bus.client import Message
from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ContainerGrant,
    DeviceShare,
    Placement,
)
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.errors import Conflict, Forbidden, Unavailable
from hamicommon.events import Allocated, StartRefused, reports_subject
from hamicommon.ledger.model import Change, Draft, StateStep

from tests.fakes.ledger import FakeLedger

NODE = NodeName("n")
CARD = GpuDevice(
    uuid=GpuUuid("GPU-1"),
    index=0,
    vendor="NVIDIA",
    type="NVIDIA A100",
    slots=4,
    memory_mib=1000,
    core_percent=100,
)


class Releasing:
    """Carries verdicts out on the ledger, without what hangs on it."""

    def __init__(self, ledger: FakeLedger) -> None:
        self._ledger = ledger
        self.free_lock = AsyncMock()
        self.free_token = AsyncMock()
        self.note_failure = AsyncMock()

    def is_bound(self, allocation_id: AllocationId, token: int) -> bool:
        del allocation_id, token
        return False

    async def allocated(
        self,
        allocation_id: AllocationId,
        *,
        node: NodeName,
        token: int,
        actor: str,
        about: Mapping[str, str],
    ) -> bool:
        assert about.keys() == {"pod_uid"}  # and the trace, where the report has one
        step = StateStep(
            allocation_id=allocation_id,
            sources=frozenset({AllocationState.BOUND}),
            target=AllocationState.ALLOCATED,
            actor=actor,
            token=token,
            node=node,
        )
        return await self._ledger.advance(step) is not None

    async def apply(self, allocation: Allocation, verdict: Any, *, actor: str) -> Change | None:
        sources = frozenset({allocation.state})
        return await self._ledger.advance(
            StateStep(
                allocation_id=allocation.id, sources=sources, target=verdict.target, actor=actor
            )
        )


async def binding(ledger: FakeLedger) -> Allocation:
    ledger.add_card(NODE, CARD)
    share = DeviceShare(uuid=CARD.uuid, vendor="NVIDIA", memory_mib=100, core_percent=0)
    container = ContainerGrant(index=0, name="main", role="app", shares=(share,))
    draft = Draft(
        allocation_id=AllocationId("a"),
        pod_uid=PodUid("uid"),
        namespace="team",
        pod_name="pod",
        placement=Placement(node=NODE, containers=(container,)),
        lease_s=60,
    )
    return (await ledger.begin(draft)).allocation


def report_of(allocation: Allocation) -> Message:
    assert allocation.token is not None
    report = Allocated(
        report_id="r",
        node=NODE,
        allocation_id=allocation.id,
        pod_uid=allocation.pod_uid,
        token=allocation.token,
        at=datetime.now(UTC),
    )
    return Message(
        subject=reports_subject(NODE),
        data=report.model_dump_json().encode(),
        stream_sequence=1,
        deliveries=1,
    )


def reports(
    ledger: FakeLedger,
    *,
    node: str | None,
    ender: Any = None,
    announcer: Any = None,
    instruments: SchedulerInstruments | None = None,
) -> GrantReports:
    pod = {"metadata": {"uid": "uid"}, "spec": {"nodeName": node}, "status": {}}
    transitions: Any = Releasing(ledger)
    pods: Any = SimpleNamespace(get=AsyncMock(return_value=pod))
    return GrantReports(
        store=ledger,
        transitions=transitions,
        drift=AsyncMock(),
        instances=AsyncMock(),
        pods=pods,
        ender=ender or AsyncMock(),
        announcer=announcer or Mock(),
        instruments=instruments or SchedulerInstruments(),
        known_pods={},
    )


async def handle(handler: GrantReports, *messages: Message) -> None:
    for error in await handler.handle_all(messages):
        if error is not None:
            raise error


async def test_the_kubelet_may_be_faster_than_the_answer_to_the_binding() -> None:
    ledger = FakeLedger()
    allocation = await binding(ledger)

    await handle(reports(ledger, node=NODE), report_of(allocation))

    states = [event.state for event in ledger.history(PodUid("uid"))]
    assert states == ["binding", "bound", "allocated"]


async def test_an_answer_that_another_pod_took_ends_no_binding_that_has_not_begun() -> None:
    """A pod without a grant asked the kubelet, and Allocate does not show for whom it is."""
    ledger = FakeLedger()
    allocation = await binding(ledger)

    with pytest.raises(Unavailable, match="is not bound to n yet"):
        await handle(reports(ledger, node=None), report_of(allocation))

    assert await ledger.get(allocation.id) == allocation


def refused_start(allocation: Allocation | None = None, *, of: str = "uid") -> Message:
    report = StartRefused(
        report_id="r",
        node=NODE,
        allocation_id="" if allocation is None else allocation.id,
        pod_uid=of,
        token=0 if allocation is None else allocation.token or 0,
        at=datetime.now(UTC),
        namespace="team",
        pod_name="pod",
        container="main",
        reason="it has another one's devices",
    )
    body = report.model_dump_json().encode()
    return Message(subject=reports_subject(NODE), data=body, stream_sequence=1, deliveries=1)


def ending(answer: Any) -> Any:
    """An ender that answers so, or raises it."""
    return Mock(end=AsyncMock(side_effect=[answer]))


@pytest.mark.parametrize("granted", [True, False])
async def test_a_pod_with_another_ones_devices_is_ended(*, granted: bool) -> None:
    ledger, ender, announcer = FakeLedger(), ending(""), Mock()
    instruments = SchedulerInstruments()
    allocation = await binding(ledger) if granted else None
    handler = reports(ledger, node=NODE, ender=ender, announcer=announcer, instruments=instruments)

    await handle(handler, refused_start(allocation))

    [call] = ender.end.await_args_list
    assert (call.args[0].uid, call.args[1]) == ("uid", NODE)
    announcer.announce.assert_called_once()
    assert instruments.wrong_devices.labels("ended")._value.get() == 1
    noted = handler.transitions.note_failure
    assert [each.args[0].id for each in noted.await_args_list] == (["a"] if granted else [])


@pytest.mark.parametrize(
    ("answer", "counted"),
    [(Conflict("it changed"), 1), ("it is a static pod", 1), (GONE, 0)],
)
async def test_a_pod_that_can_not_be_ended_is_counted_and_not_tried_for_ever(
    answer: Any, counted: int
) -> None:
    announcer, instruments = Mock(), SchedulerInstruments()
    handler = reports(
        FakeLedger(),
        node=NODE,
        ender=ending(answer),
        announcer=announcer,
        instruments=instruments,
    )

    await handle(handler, refused_start())

    announcer.announce.assert_not_called()
    assert instruments.wrong_devices.labels("failed")._value.get() == counted


@pytest.mark.parametrize("error", [Unavailable("no answer"), Forbidden("pods is forbidden")])
async def test_a_pod_is_ended_later_if_the_api_server_refuses_now(error: Unavailable) -> None:
    handler = reports(FakeLedger(), node=NODE, ender=ending(error))

    with pytest.raises(Unavailable):
        await handle(handler, refused_start())
