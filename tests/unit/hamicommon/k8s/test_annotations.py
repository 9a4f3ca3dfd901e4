"""Pod annotations and the node lock, to the byte."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.annotations import decode_pod_devices
from hamicommon.k8s.mig import (
    MigReservation,
    MigSlice,
    card_of,
    decode_reservations,
    encode_reservations,
    reservations_of,
)
from hamicommon.k8s.pod_annotations import (
    FRONT_END,
    GPU_POLICY,
    NODE_POLICY,
    NVIDIA_NUMA_BIND,
    PRELOAD,
    SCORING_WEIGHTS,
    UserAnnotation,
)
from hamicommon.vendors.annotation_table import (
    scheduler_owned,
    user_annotations,
    written_annotations,
)
from hamicommon.vendors.registry import Vendors
from hypothesis import given, settings
from hypothesis import strategies as st

VENDORS = Vendors.from_config(DeviceConfig())


def share(uuid: str, memory: int = 3000, core: int = 0, vendor: str = "NVIDIA") -> DeviceShare:
    return DeviceShare(uuid=GpuUuid(uuid), vendor=vendor, memory_mib=memory, core_percent=core)


def grants(*containers: tuple[DeviceShare, ...]) -> list[ContainerGrant]:
    return [
        ContainerGrant(index=index, name=f"c{index}", role="app", shares=shares)
        for index, shares in enumerate(containers)
    ]


def test_every_card_ends_with_a_colon_and_every_container_with_a_semicolon() -> None:
    text = keys.encode_pod_devices(grants((share("x"),), (share("y", 5000, 30),)), "NVIDIA")
    assert text == "x,NVIDIA,3000,0:;y,NVIDIA,5000,30:;"

    two = keys.encode_pod_devices(grants((share("x"), share("y"))), "NVIDIA")
    assert two == "x,NVIDIA,3000,0:y,NVIDIA,3000,0:;"


def test_a_container_without_a_card_is_an_empty_entry_at_its_place() -> None:
    assert keys.encode_pod_devices(grants((), (share("x"),), ()), "NVIDIA") == (
        ";x,NVIDIA,3000,0:;;"
    )


def test_only_the_cards_of_the_vendor_are_written() -> None:
    both = grants((share("x"), share("m", vendor="MLU")))
    assert keys.encode_pod_devices(both, "MLU") == "m,MLU,3000,0:;"


def test_semicolons_that_a_plugin_added_are_empty_containers() -> None:
    assert keys.decode_pod_devices("x,NVIDIA,3000,0:;;;") == ((share("x"),), (), ())
    assert keys.decode_pod_devices(";;") == ((), ())
    assert keys.decode_pod_devices("") == ()


def test_what_hami_tolerates_is_tolerated() -> None:
    assert keys.decode_pod_devices("x,NVIDIA,3000,0,more:junk:") == ((share("x"),),)


def test_missing_fields_are_refused_with_hamis_message() -> None:
    with pytest.raises(InvalidRequest, match="missing fields, do not use nodeName in task spec"):
        keys.decode_pod_devices("x,NVIDIA,3000:;")
    with pytest.raises(InvalidRequest, match="not whole numbers"):
        keys.decode_pod_devices("x,NVIDIA,much,0:;")
    with pytest.raises(InvalidRequest, match="not from 0 to 2147483647"):
        keys.decode_pod_devices("x,NVIDIA,-5,0:;")


shares = st.builds(
    share,
    st.text(st.characters(blacklist_characters=",:;", codec="utf-8"), min_size=1),
    st.integers(0, 2**31 - 1),
    st.integers(0, 100),
)


@settings(max_examples=100)
@given(st.lists(st.lists(shares, max_size=3).map(tuple), max_size=4))
def test_slices_come_back_per_container(containers: list[tuple[DeviceShare, ...]]) -> None:
    text = keys.encode_pod_devices(grants(*containers), "NVIDIA")
    assert keys.decode_pod_devices(text) == tuple(containers)


def test_a_binding_is_written_with_node_phase_and_both_times() -> None:
    at = datetime(2023, 11, 14, 22, 13, 20, 999_000, tzinfo=UTC)
    written = keys.binding_annotations(
        NodeName("n"), filtered_at=at, bound_at=at + timedelta(seconds=2)
    )
    assert written == {
        "hami.io/vgpu-node": "n",
        "hami.io/vgpu-time": "1700000000",
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": "1700000002",
    }
    assert written.keys() <= scheduler_owned(VENDORS)


def test_device_keys_of_every_vendor_are_the_schedulers() -> None:
    assert {v.keys.allocated for v in VENDORS} <= scheduler_owned(VENDORS)


def test_a_node_lock_names_its_time_and_pod() -> None:
    at = datetime(2026, 3, 4, 5, 6, 7, 999, tzinfo=timezone(timedelta(hours=8)))
    text = keys.encode_node_lock(at=at, namespace="default", pod_name="p")

    assert text == "2026-03-03T21:06:07Z,default,p"
    lock = keys.decode_node_lock(text)
    assert (lock.namespace, lock.pod_name, lock.names_pod) == ("default", "p", True)
    assert lock.at == datetime(2026, 3, 3, 21, 6, 7, tzinfo=UTC)


def test_a_legacy_node_lock_names_no_pod() -> None:
    assert not keys.decode_node_lock("2026-03-04T05:06:07+08:00").names_pod


@pytest.mark.parametrize("text", ["", "yesterday", "2026-03-04T05:06:07Z,ns",
                                  "2026-03-04T05:06:07", "2026-03-04T05:06:07Z,a,b,c"])  # fmt: skip
def test_a_malformed_node_lock_is_refused(text) -> None:
    with pytest.raises(InvalidRequest, match=r"hami.io/mutex.lock"):
        keys.decode_node_lock(text)


def test_a_cordon_lists_cards_and_ignores_blanks() -> None:
    assert keys.decode_cordon(" GPU-a, ,GPU-b,") == {"GPU-a", "GPU-b"}
    assert keys.decode_cordon("") == frozenset()


# --- the table of pod annotations: values are read, refused or warned of as their rows have it


EVERY_VENDOR = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)


def annotate(row: UserAnnotation[Any], text: str) -> dict[str, str]:
    return {row.name: text}


@pytest.mark.parametrize(
    ("row", "text", "value"),
    [
        (PRELOAD, "true", "true"),
        (NODE_POLICY, " spread ", "spread"),
        (NODE_POLICY, "emptiest", "binpack"),
        (GPU_POLICY, "mutex, spread", ("mutex", "spread")),
        (NVIDIA_NUMA_BIND, "yes", False),
    ],
)
def test_a_value_is_read_by_its_row(row: UserAnnotation[Any], text: str, value: object) -> None:
    assert row.read(annotate(row, text)) == value
    assert row.read({}) is None


@pytest.mark.parametrize(
    ("row", "text"),
    [(PRELOAD, "TRUE"), (PRELOAD, ""), (SCORING_WEIGHTS, "slot=1")],
)
def test_a_value_that_no_reader_could_take_is_refused(row: UserAnnotation[Any], text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        row.read(annotate(row, text))

    assert str(refused.value).startswith(
        f"annotation {row.name} is '{text}': expected {row.wanted}"
    )
    assert row.effect == "the pod is refused"


@pytest.mark.parametrize(
    ("row", "text", "remark"),
    [
        (FRONT_END, "claims", "is 'claims': expected limits or dra; the pod keeps its limits"),
        (NVIDIA_NUMA_BIND, "yes", "is 'yes': expected true or false; it is taken as false"),
        (GPU_POLICY, "binpack,full", "has 'full': expected a comma list of "),
    ],
)
def test_a_value_that_is_admitted_and_not_known_is_warned_of(
    row: UserAnnotation[Any], text: str, remark: str
) -> None:
    [found] = row.remarks(annotate(row, text))

    assert found.startswith(f"annotation {row.name} {remark}")
    assert found.endswith(row.otherwise)


def test_every_row_has_its_texts_and_people_and_services_write_different_annotations() -> None:
    own, written = user_annotations(EVERY_VENDOR), written_annotations(EVERY_VENDOR)
    names = [row.name for row in own]

    assert all(row.wanted and row.holds and row.reader for row in own)
    assert all(row.holds and row.reader for row in written)
    assert len(set(names)) == len(names)
    assert scheduler_owned(EVERY_VENDOR).isdisjoint(names)
    assert scheduler_owned(EVERY_VENDOR) < {row.name for row in written}


# --- the reservation annotation of protocol 2.6, and slices of older HAMi


ONE = MigSlice(profile="1g.5gb", start=3, size=1)
TWO = MigSlice(profile="2g.10gb", start=0, size=2)


def mig_share(uuid: str, part: MigSlice | None = None, vendor: str = "NVIDIA") -> DeviceShare:
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
    containers = [
        grant(0),
        grant(1, mig_share("X", vendor="MLU"), mig_share("GPU-a"), mig_share("GPU-b", ONE)),
    ]

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
        ("{", "not JSON"),
        ("{}", "not a JSON list"),
        ("[1]", "reservation 0 is not an object"),
        (f"[{entry(containerIndex=-1)}]", "containerIndex is -1"),
        (f"[{entry(deviceIndex=-1)}]", "deviceIndex is -1"),
        (f"[{entry(gpuUUID='')}]", "gpuUUID is ''"),
        (f"[{entry(profile='')}]", "profile is ''"),
        (f"[{entry(size=0)}]", "placement.size is 0"),
        (f"[{entry(start=-1)}]", "start is -1"),
        (f"[{entry(start='1')}]", "start is '1'"),
        (f"[{entry(placement=3)}]", "placement is not an object"),
        (f"[{entry(migUUID='m')}]", "only migUUID is there"),
        (f"[{entry(migUUID='m', gpuInstanceID=1)}]", "only migUUID, gpuInstanceID is there"),
        (f"[{entry()},{entry()}]", "reservation 1: container 0, device 0 appears twice"),
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
