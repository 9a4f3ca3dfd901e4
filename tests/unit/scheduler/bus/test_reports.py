"""Reports of a node that arrive while the binding is in progress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
    DeviceShare,
)
from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import Conflict, Forbidden, HamiError, NotFound, Unavailable
from hamicommon.events import Allocated, MadeInstance, StartRefused, reports_subject
from hamicommon.k8s.annotations import MIG_ALLOCATIONS
from hamicommon.k8s.mig import (
    MigSlice,
    decode_reservations,
    encode_reservations,
    reservations_of,
)
from hamicommon.ledger.model import Change, StateStep

from tests.contract.ledger.allocation_stores import container, draft
from tests.fakes.ledger import FakeLedger
from tests.unit.devices import a_device

NODE = NodeName("n")
CARD = a_device("GPU-1", slots=4, memory_mib=1000)


class Releasing:
    """Carries verdicts out on the ledger, without what hangs on it."""

    def __init__(self, ledger: FakeLedger) -> None:
        self._ledger = ledger
        self.locks = SimpleNamespace(release=AsyncMock(), release_token=AsyncMock())
        self.note_failure = AsyncMock()

    def is_bound(self, allocation_id: AllocationId, token: int) -> bool:
        del allocation_id, token
        return False

    async def mark_allocated(
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
    entered = draft("uid", container(("1", 100, 0)), node=NODE, pod_name="pod")
    return (await ledger.begin(entered)).allocation


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
        doubt_mirror=Mock(),
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
    """An ender that returns or raises `answer`."""
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
    assert [each.args[0].id for each in noted.await_args_list] == (
        [allocation.id] if allocation else []
    )


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


# --- instances that nodes made for MIG slices: kept with the grant, and written to the pod


MIG_CARD = a_device("GPU-1", slots=7)
ONE = MadeInstance(
    container="main",
    device_index=1,
    uuid="GPU-1",
    mig_uuid="MIG-1",
    gpu_instance_id=7,
    compute_instance_id=0,
)


def slice_at(start: int) -> DeviceShare:
    part = MigSlice(profile="1g.10gb", start=start, size=1)
    return DeviceShare(
        uuid=MIG_CARD.uuid, vendor="NVIDIA", memory_mib=9728, core_percent=15, detail=part.detail
    )


async def allocate_slices(ledger: FakeLedger) -> Allocation:
    """An init container without a card, then one with two slices of one card."""
    ledger.add_card(NODE, MIG_CARD)
    containers = (
        container(name="prepare", role="init"),
        replace(container(index=1), shares=(slice_at(6), slice_at(5))),
    )
    reserved = encode_reservations(reservations_of(containers, "NVIDIA"))
    annotations = {MIG_ALLOCATIONS: reserved, "other": "1"}
    entered = draft("uid", *containers, node=NODE, pod_name="pod", annotations=annotations)
    entered = replace(entered, allocation_id=AllocationId("a"))
    live = (await ledger.begin(entered)).allocation
    step = StateStep(
        allocation_id=live.id,
        sources=frozenset({live.state}),
        target=AllocationState.ALLOCATED,
        new_token=True,
    )
    change = await ledger.advance(step)
    assert change is not None
    return change.allocation


class Noting:
    """The use case, and its calls."""

    def __init__(self, ledger: FakeLedger, error: HamiError | None = None) -> None:
        self.annotate = AsyncMock(side_effect=error)
        self.doubted = Mock()
        pods: Any = SimpleNamespace(annotate=self.annotate)
        self.note = GrantReports(
            store=ledger,
            transitions=Mock(),
            drift=Mock(),
            doubt_mirror=self.doubted,
            pods=pods,
            ender=Mock(),
            announcer=Mock(),
            instruments=Mock(),
            known_pods={},
        ).note_instances


async def kept_instances(
    ledger: FakeLedger,
) -> dict[tuple[int, int], tuple[str, int | None, int | None]]:
    row = await ledger.get(AllocationId("a"))
    assert row is not None
    assert row.annotations["other"] == "1"
    return {
        (one.container_index, one.device_index): (
            one.mig_uuid,
            one.gpu_instance_id,
            one.compute_instance_id,
        )
        for one in decode_reservations(row.annotations[MIG_ALLOCATIONS])
    }


async def test_the_names_of_what_was_made_are_kept_and_written_to_the_pod_once() -> None:
    ledger = FakeLedger()
    allocation = await allocate_slices(ledger)
    noting = Noting(ledger)

    await noting.note(allocation, [ONE])

    assert await kept_instances(ledger) == {(1, 0): ("", None, None), (1, 1): ("MIG-1", 7, 0)}
    row = await ledger.get(allocation.id)
    assert row is not None
    noting.annotate.assert_awaited_once_with(
        PodRef("team", "pod", PodUid("uid")),
        annotations={MIG_ALLOCATIONS: row.annotations[MIG_ALLOCATIONS]},
    )
    await noting.note(row, [ONE])
    assert noting.annotate.await_count == 1
    noting.doubted.assert_not_called()


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(ONE.model_copy(update={"container": "other"}), id="no-such-container"),
        pytest.param(ONE.model_copy(update={"device_index": 2}), id="no-such-slice"),
        pytest.param(ONE.model_copy(update={"uuid": "GPU-2"}), id="another-card"),
    ],
)
async def test_what_was_not_reserved_is_not_written_down(made: MadeInstance) -> None:
    ledger = FakeLedger()
    allocation = await allocate_slices(ledger)
    noting = Noting(ledger)

    await noting.note(allocation, [made])

    assert await ledger.get(allocation.id) == allocation
    noting.annotate.assert_not_awaited()


@pytest.mark.parametrize(
    ("error", "doubted"),
    [
        pytest.param(Unavailable("away"), True, id="the-mirror-writes-it-later"),
        pytest.param(NotFound("gone"), False, id="nothing-is-left-to-write"),
    ],
)
async def test_an_api_server_that_does_not_take_it_loses_nothing(
    error: HamiError, doubted: bool
) -> None:
    ledger = FakeLedger()
    allocation = await allocate_slices(ledger)
    noting = Noting(ledger, error)

    await noting.note(allocation, [ONE])

    assert (await kept_instances(ledger))[1, 1] == ("MIG-1", 7, 0)
    assert noting.doubted.called is doubted


async def test_a_grant_that_is_over_is_left_as_it_was() -> None:
    ledger = FakeLedger()
    allocation = await allocate_slices(ledger)
    step = StateStep(
        allocation_id=allocation.id,
        sources=frozenset({allocation.state}),
        target=AllocationState.RELEASED,
    )
    await ledger.advance(step)
    noting = Noting(ledger)

    await noting.note(allocation, [ONE])

    assert (await kept_instances(ledger))[1, 1] == ("", None, None)
    noting.annotate.assert_not_awaited()
