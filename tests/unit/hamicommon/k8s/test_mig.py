"""The reservation annotation of protocol 2.6, and slices of older HAMi."""

import json

import pytest
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import decode_pod_devices
from hamicommon.k8s.mig import (
    MigReservation,
    MigSlice,
    card_of,
    decode_reservations,
    encode_reservations,
    reservations_of,
)
from hypothesis import given
from hypothesis import strategies as st

ONE = MigSlice(profile="1g.5gb", start=3, size=1)
TWO = MigSlice(profile="2g.10gb", start=0, size=2)


def share(uuid: str, part: MigSlice | None = None, vendor: str = "NVIDIA") -> DeviceShare:
    return DeviceShare(
        uuid=GpuUuid(uuid),
        vendor=vendor,
        memory_mib=1,
        core_percent=1,
        detail=part.detail if part else {},
    )


def grant(index: int, *shares: DeviceShare) -> ContainerGrant:
    return ContainerGrant(index=index, name=f"c{index}", role="app", shares=shares)


def test_a_reservation_is_written_as_the_node_reads_it() -> None:
    containers = [grant(0), grant(1, share("X", vendor="MLU"), share("GPU-a"), share("GPU-b", ONE))]

    assert encode_reservations(reservations_of(containers, "NVIDIA")) == (
        '[{"containerIndex":1,"deviceIndex":1,"gpuUUID":"GPU-b","profile":"1g.5gb",'
        '"placement":{"start":3,"size":1}}]'
    )


def test_the_nodes_runtime_names_are_read_and_written() -> None:
    text = (
        '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-a","profile":"2g.10gb",'
        '"placement":{"start":0,"size":2},"migUUID":"MIG-1","gpuInstanceID":5,'
        '"computeInstanceID":0}]'
    )
    (one,) = decode_reservations(text)

    assert (one.mig_uuid, one.gpu_instance_id, one.compute_instance_id) == ("MIG-1", 5, 0)
    assert encode_reservations([one]) == text


reservations = st.builds(
    MigReservation,
    container_index=st.integers(0, 9),
    device_index=st.integers(0, 9),
    card=st.text(min_size=1).map(GpuUuid),
    slice=st.builds(
        MigSlice,
        profile=st.text(min_size=1),
        start=st.integers(0, 15),
        size=st.integers(1, 16),
    ),
)


@given(st.lists(reservations, unique_by=lambda one: (one.container_index, one.device_index)))
def test_what_is_written_is_read_back(some: list[MigReservation]) -> None:
    assert decode_reservations(encode_reservations(some)) == tuple(some)


def entry(start: object = 0, size: int = 1, **changes: object) -> str:
    whole = {
        "containerIndex": 0,
        "deviceIndex": 0,
        "gpuUUID": "g",
        "profile": "p",
        "placement": {"start": start, "size": size},
    }
    return json.dumps(whole | changes)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "no JSON"),
        ("{}", "no JSON list"),
        ("[1]", "reservation 0 is no object"),
        (f"[{entry(containerIndex=-1)}]", "containerIndex is -1"),
        (f"[{entry(deviceIndex=-1)}]", "deviceIndex is -1"),
        (f"[{entry(gpuUUID='')}]", "gpuUUID is ''"),
        (f"[{entry(profile='')}]", "profile is ''"),
        (f"[{entry(size=0)}]", "placement.size is 0"),
        (f"[{entry(start=-1)}]", "start is -1"),
        (f"[{entry(start='1')}]", "start is '1'"),
        (f"[{entry(placement=3)}]", "placement is no object"),
        (f"[{entry(migUUID='m')}]", "only migUUID is there"),
        (f"[{entry(migUUID='m', gpuInstanceID=1)}]", "only migUUID, gpuInstanceID is there"),
        (f"[{entry()},{entry()}]", "reservation 1: container 0, device 0 is there twice"),
    ],
)
def test_a_malformed_reservation_is_refused_with_what_is_wrong(text: str, wrong: str) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        decode_reservations(text)


def test_an_empty_value_reserves_nothing() -> None:
    assert decode_reservations("") == decode_reservations("[]") == ()


def test_a_slice_of_an_older_hami_is_read_as_a_slice_of_its_card() -> None:
    assert card_of("GPU-a[1-0]") == "GPU-a"
    assert card_of("GPU-a") == "GPU-a"
    ((one,),) = decode_pod_devices("GPU-a[2-3],NVIDIA,5120,14:;")
    assert (one.uuid, one.memory_mib, one.detail) == ("GPU-a", 5120, {})
