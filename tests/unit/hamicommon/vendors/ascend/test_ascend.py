"""Ascend chips by protocol 1.16: requests, nodes, annotations."""

import json
from datetime import UTC, datetime

import pytest
from hamicommon.device_config import DeviceConfig, VnpuChip, VnpusConfig
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.ascend import Ascend
from hamicommon.vendors.interface.vendor import PlacedPod
from hamicommon.vendors.registry import Vendors

from tests.unit.hamicommon.vendors.ascend.chips import (
    B3,
    CHIPS,
    CORES,
    MEM,
    NPU,
    P310,
    SOFT,
    C,
    names,
    register,
)
from tests.unit.hamicommon.vendors.asking import (
    amounts_of,
    container,
)


def test_every_chip_of_the_configuration_is_a_vendor_when_enabled() -> None:
    expected = "Ascend910A Ascend910B2 Ascend910B3 Ascend910B4-1 Ascend910B4 Ascend310P Ascend910C"
    config = DeviceConfig()

    enabled = Vendors.from_config(config, enable_ascend=True)
    assert [v.name for v in enabled if isinstance(v, Ascend)] == expected.split()
    assert not any(isinstance(vendor, Ascend) for vendor in Vendors.from_config(config))


@pytest.mark.parametrize("name", CHIPS)
def test_names_are_made_of_the_vendors_name(name) -> None:
    vendor = CHIPS[name]

    assert vendor.resources.all() == names(name)
    assert vendor.keys.register == f"hami.io/node-register-{name}"
    assert vendor.keys.handshake == f"hami.io/node-handshake-{name}"
    assert vendor.keys.to_allocate == f"hami.io/{name}-devices-to-allocate"
    assert vendor.keys.allocated == f"hami.io/{name}-devices-allocated"
    assert vendor.keys.lock == "hami.io/mutex.lock"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({NPU: 1}, (1, 0, 100, 0)),
        ({NPU: 1, MEM: "6144"}, (1, 6144, None, 0)),
        ({NPU: 2, MEM: 65536, CORES: 30}, (2, 65536, None, 30)),
        ({NPU: 1, MEM: 0}, (1, 0, 100, 0)),
        ({NPU: 0, MEM: 5}, None),
        ({MEM: 5}, None),
    ],
)
def test_a_request_is_count_memory_and_cores_as_admission_left_them(limits, expected) -> None:
    request = B3.parse_request(container(limits))
    found = amounts_of(request)

    assert found == expected
    assert B3.parse_request(container(None, limits)) == request


@pytest.mark.parametrize(
    ("resource", "value", "right"),
    [
        (NPU, "-1", "a whole number of cards"),
        (NPU, "0.5", "a whole number of cards"),
        (MEM, "-1", "a whole number of MiB"),
        (MEM, "16Gi", r"\(the unit is MiB: write 16384\)"),
        (MEM, "2147483648", "a whole number of MiB up to 2147483647"),
        (MEM, "1.5", "a whole number of MiB"),
        (CORES, "500m", "a whole number from 0 to 100"),
    ],
)
def test_a_malformed_amount_is_refused_and_never_dropped(resource, value, right) -> None:
    with pytest.raises(InvalidRequest, match=right) as refusal:
        B3.parse_request(container({NPU: 1} | {resource: value}))
    assert f"container 'c': {resource} is {value}" in str(refusal.value)


def test_the_factor_multiplies_memory_and_none_counts_as_one() -> None:
    chip = VnpuChip(
        chip_name="X",
        common_word="X",
        resource_name="x/npu",
        resource_memory_name="x/mem",
        memory_allocatable=32768,
        memory_capacity=32768,
        memory_factor=1024,
    )
    vendor = Ascend(chip, VnpusConfig(configs=(chip,)))

    assert vendor.resources.memory_factor == 1024
    request = vendor.parse_request(container({"x/npu": 1, "x/mem": 4}))
    assert request is not None
    assert request.memory_mib == 4096
    with pytest.raises(InvalidRequest, match="units of 1024 MiB up to 2097151"):
        vendor.parse_request(container({"x/npu": 1, "x/mem": 2097152}))
    assert C.resources.memory_factor == 1


def test_uuids_and_the_mode_are_selected_by_annotation() -> None:
    chosen = B3.select(
        {
            "hami.io/use-Ascend910B3-uuid": "a, b",
            "hami.io/no-use-Ascend910B3-uuid": "c",
            "hami.io/use-Ascend910C-uuid": "d",
        }
    )

    assert (chosen.use_uuids, chosen.avoid_uuids, chosen.traits) == (("a", "b"), ("c",), {})
    assert B3.select(SOFT).traits == {"mode": "hami-core"}
    assert B3.select({"huawei.com/vnpu-mode": "other"}).traits == {}


@pytest.mark.parametrize(
    ("configured", "annotation", "soft"),
    [
        (False, None, False),
        (True, None, True),
        (False, "true", True),
        (True, "false", False),
        (True, "yes", False),
    ],
)
def test_a_node_shows_whether_its_chips_can_be_cut_else_the_configuration(
    configured, annotation, soft
) -> None:
    vendor = Ascend(B3.chip, VnpusConfig(hami_vnpu_core=configured))
    annotations = {} if annotation is None else {"hami-vnpu-core": annotation}
    (chip,) = vendor.node_devices(
        register(vendor, [{"id": "a", "count": 1, "custominfo": {"NetworkID": 3}}], **annotations)
    )

    assert chip.info == {"NetworkID": 3, "SoftSlices": soft}
    assert chip.vendor == "Ascend910B3"
    assert vendor.node_devices({}) == ()
    assert vendor.node_pair_scores({}) == {}


def test_an_open_handshake_without_capacity_is_a_dead_plugin() -> None:
    asked = {"hami.io/node-handshake-Ascend910B3": "Requesting_2026-01-02 03:04:05"}

    assert not B3.plugin_alive({"metadata": {"annotations": asked}})
    assert C.plugin_alive({"metadata": {"annotations": asked}})


# --- annotations of a placed pod


def read_annotations(
    vendor: Ascend, *amounts: tuple[int, int], soft: bool = False
) -> dict[str, str]:
    """Return the annotations when the second of two containers gets these (memory, core)."""
    shares = tuple(
        DeviceShare(
            uuid=GpuUuid(f"npu-{i}"), vendor=vendor.name, memory_mib=memory, core_percent=core
        )
        for i, (memory, core) in enumerate(amounts)
    )
    return vendor.pod_annotations(
        PlacedPod(
            node=NodeName("n"),
            containers=[
                ContainerGrant(index=0, name="a", role="app"),
                ContainerGrant(index=1, name="b", role="app", shares=shares),
            ],
            cards={},
            selections={vendor.name: vendor.select(SOFT if soft else {})},
            now=datetime(2026, 1, 2, 3, 4, 5, 900000, UTC),
        )
    )


def test_the_template_of_a_slice_reaches_the_runtime() -> None:
    written = read_annotations(B3, (16384, 0))

    assert written == {
        "hami.io/Ascend910B3-devices-to-allocate": ";npu-0,Ascend910B3,16384,0:;",
        "hami.io/Ascend910B3-devices-allocated": ";npu-0,Ascend910B3,16384,0:;",
        "predicate-time": "1767323045",
        "huawei.com/Ascend910B3": '[{"UUID":"npu-0","temp":"vir05_1c_16g","memory":16384}]',
    }
    assert set(written) == {
        B3.keys.to_allocate,
        B3.keys.allocated,
        *B3.keys.extra,
    }
    assert read_annotations(B3) == {}


@pytest.mark.parametrize(
    ("vendor", "memory", "template"),
    [
        (CHIPS["Ascend910A"], 1, "vir02"),
        (CHIPS["Ascend910A"], 2184, "vir02"),
        (CHIPS["Ascend910A"], 2185, "vir04"),
        (CHIPS["Ascend910A"], 6144, "vir08"),
        (CHIPS["Ascend910A"], 17477, None),
        (CHIPS["Ascend910B2"], 8193, "vir06_1c_16g"),
        (CHIPS["Ascend910B4"], 8192, "vir05_1c_8g"),
        (CHIPS["Ascend910B4-1"], 8192, "vir05_1c_16g"),
        (P310, 6144, "vir02"),
        (P310, 21527, None),
        (C, 65536, None),
    ],
)
def test_the_template_is_the_smallest_that_holds_the_memory(vendor, memory, template) -> None:
    (entry,) = json.loads(read_annotations(vendor, (memory, 0))[f"huawei.com/{vendor.name}"])

    assert entry.get("temp") == template
    assert entry["memory"] == memory


def test_soft_slices_have_no_template_but_cores() -> None:
    written = read_annotations(B3, (1000, 30), (0, 0), soft=True)

    assert written["huawei.com/Ascend910B3"] == (
        '[{"UUID":"npu-0","memory":1000,"core":30},{"UUID":"npu-1"}]'
    )
