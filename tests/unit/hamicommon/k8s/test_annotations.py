"""Pod annotations and the node lock, to the byte."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import annotations as keys
from hamicommon.vendors.annotation_table import scheduler_owned
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
