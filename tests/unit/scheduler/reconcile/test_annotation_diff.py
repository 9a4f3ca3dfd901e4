"""Differences between a pod's annotations and its row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hami_scheduler.reconcile.annotation_diff import differing, misread
from hamicommon import device_config
from hamicommon.domain.allocations import (
    Allocation,
    AllocationState,
    ContainerGrant,
    DeviceShare,
)
from hamicommon.domain.ids import GpuUuid
from hamicommon.k8s.annotations import (
    BIND_PHASE,
    MIG_ALLOCATIONS,
    NVIDIA_ALLOCATED,
    NVIDIA_TO_ALLOCATE,
    encode_pod_devices,
)
from hamicommon.k8s.mig import MigReservation, MigSlice, encode_reservations
from hamicommon.vendors.registry import Vendors

from tests.unit.scheduler.allocations import an_allocation

VENDORS = Vendors.from_config(device_config.load(None))


def containers(*uuids: str) -> tuple[ContainerGrant, ...]:
    """An init container without a card, then one with these."""
    shares = tuple(
        DeviceShare(uuid=GpuUuid(uuid), vendor="NVIDIA", memory_mib=1024, core_percent=30)
        for uuid in uuids
    )
    return (
        ContainerGrant(index=0, name="prepare", role="init"),
        ContainerGrant(index=1, name="main", role="app", shares=shares),
    )


def row(*uuids: str, reserved_on: tuple[str, ...] = ("GPU-a", "GPU-b")) -> Allocation:
    written = encode_pod_devices(containers(*reserved_on), "NVIDIA")
    return an_allocation(
        state=AllocationState.ALLOCATED,
        containers=containers(*uuids),
        annotations={NVIDIA_ALLOCATED: written, NVIDIA_TO_ALLOCATE: written},
    )


@pytest.mark.parametrize(
    ("kept", "lies"),
    [
        (";GPU-a,NVIDIA,1024,30:;", False),
        # Moved since, without the container that has no card, with some at the end.
        ("GPU-b,NVIDIA,1024,30:;;;", False),
        ("garbage", True),
        ("", True),
        (";GPU-a,NVIDIA,1,30:;", True),
        (";GPU-a,NVIDIA,1024,30:GPU-b,NVIDIA,1024,30:;", True),
        (";GPU-a,NVIDIA,x,30:;", True),
    ],
)
def test_a_row_that_keeps_an_annotation_of_other_slices_is_known(kept: str, lies: bool) -> None:
    written = {NVIDIA_ALLOCATED: ";GPU-a,NVIDIA,1024,30:;"}
    lying = replace(row("GPU-a"), annotations={NVIDIA_ALLOCATED: kept})

    assert misread(lying, written, VENDORS) == (written if lies else {})


def test_a_value_of_another_form_than_hamis_is_left() -> None:
    written = {NVIDIA_ALLOCATED: '[{"UUID": "GPU-a"}]'}

    assert misread(row("GPU-a"), written, VENDORS) == {}


RIGHT = ";GPU-a,NVIDIA,1024,30:GPU-b,NVIDIA,1024,30:;"


@pytest.mark.parametrize(
    ("found_on_pod", "differs"),
    [
        pytest.param(RIGHT, False, id="as-written"),
        pytest.param(RIGHT + ";;", False, id="containers-added-by-hamis-plugin"),
        pytest.param(RIGHT.replace("1024", "81920"), True, id="more-memory"),
        pytest.param(RIGHT.replace("GPU-b", "GPU-c"), True, id="another-card"),
        pytest.param(RIGHT.removeprefix(";"), True, id="another-container"),
        pytest.param("", True, id="empty"),
        pytest.param("nonsense,1", True, id="unreadable"),
    ],
)
def test_slices_must_be_those_of_the_ledger(found_on_pod: str, differs: bool) -> None:
    annotations = {NVIDIA_ALLOCATED: found_on_pod, NVIDIA_TO_ALLOCATE: ";", BIND_PHASE: "success"}

    found = differing(row("GPU-a", "GPU-b"), annotations, VENDORS)

    assert found == ({NVIDIA_ALLOCATED: RIGHT} if differs else {})


def test_a_pod_that_was_moved_shows_the_cards_that_it_runs_on() -> None:
    found = differing(row("GPU-a", "GPU-c"), {NVIDIA_ALLOCATED: RIGHT}, VENDORS)

    assert found == {NVIDIA_ALLOCATED: RIGHT.replace("GPU-b", "GPU-c")}


def test_a_pod_whose_row_has_no_annotations_is_left_alone() -> None:
    adopted = replace(row("GPU-a", "GPU-b"), annotations={})

    assert differing(adopted, {NVIDIA_ALLOCATED: "anything"}, VENDORS) == {}


RESERVED = MigReservation(
    container_index=1,
    device_index=0,
    card=GpuUuid("GPU-a"),
    slice=MigSlice(profile="2g.20gb", start=0, size=2),
)
MADE = replace(RESERVED, mig_uuid="MIG-1", gpu_instance_id=3, compute_instance_id=0)


@pytest.mark.parametrize(
    ("reported", "found_on_pod", "differs"),
    [
        pytest.param(MADE, encode_reservations([MADE]), False, id="as-reported"),
        pytest.param(MADE, encode_reservations([RESERVED]), True, id="not-written-yet"),
        pytest.param(MADE, "", True, id="removed"),
        pytest.param(MADE, "[{}]", True, id="unreadable"),
        pytest.param(RESERVED, encode_reservations([MADE]), False, id="hamis-plugin-made-it"),
        pytest.param(RESERVED, encode_reservations([RESERVED]), False, id="not-made-yet"),
    ],
)
def test_a_pod_shows_the_instances_that_our_agent_reported(
    reported: MigReservation, found_on_pod: str, differs: bool
) -> None:
    text = encode_reservations([reported])
    allocation = replace(row(), annotations={MIG_ALLOCATIONS: text})

    found = differing(allocation, {MIG_ALLOCATIONS: found_on_pod}, VENDORS)

    assert found == ({MIG_ALLOCATIONS: text} if differs else {})
