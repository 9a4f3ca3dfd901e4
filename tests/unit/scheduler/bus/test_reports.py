"""What a node's report is worth while the binding is under way."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hami_scheduler.bus.reports import GrantReports
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
from hamicommon.errors import Unavailable
from hamicommon.events import Allocated, reports_subject
from hamicommon.ledger.model import Change, Draft, StateStep
from hamicommon.testing.ledger import FakeLedger

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


def reports(ledger: FakeLedger, *, node: str | None, orphans: Any = None) -> GrantReports:
    pod = {"metadata": {"uid": "uid"}, "spec": {"nodeName": node}, "status": {}}
    transitions: Any = Releasing(ledger)
    pods: Any = SimpleNamespace(get=AsyncMock(return_value=pod))
    return GrantReports(
        store=ledger,
        transitions=transitions,
        orphans=orphans or AsyncMock(),
        instances=AsyncMock(),
        pods=pods,
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
