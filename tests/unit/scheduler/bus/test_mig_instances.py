"""Instances that nodes made for MIG slices: kept with the grant, and written to the pod."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from hami_scheduler.bus.mig_instances import MadeInstances
from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ContainerGrant,
    DeviceShare,
    Placement,
)
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import AllocationId, GpuUuid, NodeName, PodUid
from hamicommon.errors import HamiError, NotFound, Unavailable
from hamicommon.events import MadeInstance
from hamicommon.k8s.annotations import MIG_ALLOCATIONS
from hamicommon.k8s.mig import (
    MigSlice,
    decode_reservations,
    encode_reservations,
    reservations_of,
)
from hamicommon.ledger.model import Draft, StateStep

from tests.fakes.ledger import FakeLedger

NODE = NodeName("n")
CARD = GpuDevice(
    uuid=GpuUuid("GPU-1"),
    index=0,
    vendor="NVIDIA",
    type="NVIDIA A100",
    slots=7,
    memory_mib=81920,
    core_percent=100,
)
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
        uuid=CARD.uuid, vendor="NVIDIA", memory_mib=9728, core_percent=15, detail=part.detail
    )


async def allocated(ledger: FakeLedger) -> Allocation:
    """An init container without a card, then one with two slices of one card."""
    ledger.add_card(NODE, CARD)
    containers = (
        ContainerGrant(index=0, name="prepare", role="init"),
        ContainerGrant(index=1, name="main", role="app", shares=(slice_at(6), slice_at(5))),
    )
    reserved = encode_reservations(reservations_of(containers, "NVIDIA"))
    draft = Draft(
        allocation_id=AllocationId("a"),
        pod_uid=PodUid("uid"),
        namespace="team",
        pod_name="pod",
        placement=Placement(node=NODE, containers=containers),
        annotations={MIG_ALLOCATIONS: reserved, "other": "1"},
        lease_s=60,
    )
    live = (await ledger.begin(draft)).allocation
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
    """The use case, and what it did."""

    def __init__(self, ledger: FakeLedger, error: HamiError | None = None) -> None:
        self.annotate = AsyncMock(side_effect=error)
        self.doubted = Mock()
        pods: Any = SimpleNamespace(annotate=self.annotate)
        self.note = MadeInstances(store=ledger, pods=pods, doubt_mirror=self.doubted).note


async def kept(ledger: FakeLedger) -> dict[tuple[int, int], tuple[str, int | None, int | None]]:
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
    allocation = await allocated(ledger)
    noting = Noting(ledger)

    await noting.note(allocation, [ONE])

    assert await kept(ledger) == {(1, 0): ("", None, None), (1, 1): ("MIG-1", 7, 0)}
    row = await ledger.get(allocation.id)
    assert row is not None
    noting.annotate.assert_awaited_once_with(
        "team",
        "pod",
        uid="uid",
        annotations={MIG_ALLOCATIONS: row.annotations[MIG_ALLOCATIONS]},
        labels={},
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
    allocation = await allocated(ledger)
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
    allocation = await allocated(ledger)
    noting = Noting(ledger, error)

    await noting.note(allocation, [ONE])

    assert (await kept(ledger))[1, 1] == ("MIG-1", 7, 0)
    assert noting.doubted.called is doubted


async def test_a_grant_that_is_over_is_left_as_it_was() -> None:
    ledger = FakeLedger()
    allocation = await allocated(ledger)
    step = StateStep(
        allocation_id=allocation.id,
        sources=frozenset({allocation.state}),
        target=AllocationState.RELEASED,
    )
    await ledger.advance(step)
    noting = Noting(ledger)

    await noting.note(allocation, [ONE])

    assert (await kept(ledger))[1, 1] == ("", None, None)
    noting.annotate.assert_not_awaited()
