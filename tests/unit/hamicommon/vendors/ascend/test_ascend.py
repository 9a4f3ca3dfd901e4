"""Ascend chips by protocol 1.16: requests, nodes, annotations, choosing chips."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hamicommon.device_config import DeviceConfig, VnpuChip, VnpusConfig
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import Selection
from hamicommon.errors import InvalidRequest
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import Need
from hamicommon.vendors.ascend.ascend import Ascend
from hamicommon.vendors.ascend.fit import score_networks
from hamicommon.vendors.interface.vendor import Placed
from hamicommon.vendors.registry import Vendors

from tests.unit.hamicommon.vendors.asking import (
    container,
    judge,
    picked,
    put,
    refused,
    unhealthy,
    use,
)

CONFIG = DeviceConfig().vnpus
assert CONFIG is not None
CHIPS = {chip.common_word: Ascend(chip, CONFIG) for chip in CONFIG.configs}
B3 = CHIPS["Ascend910B3"]
C = CHIPS["Ascend910C"]
P310 = CHIPS["Ascend310P"]
SOFT = {"huawei.com/vnpu-mode": "hami-core"}


def names(name: str) -> tuple[str, str, str]:
    return f"huawei.com/{name}", f"huawei.com/{name}-memory", f"huawei.com/{name}-core"


NPU, MEM, CORES = names("Ascend910B3")


def register(vendor: Ascend, entries: list[dict[str, Any]], **annotations: str) -> dict[str, Any]:
    key = f"hami.io/node-register-{vendor.name}"
    return {"metadata": {"annotations": {key: json.dumps(entries)} | annotations}}


def chips(
    vendor: Ascend, networks: list[object], *, soft: bool = False, slots: int = 7
) -> list[GpuDevice]:
    """Chips 0, 1, ... of these networks; None registers no network."""
    entries = [
        {
            "id": f"npu-{index}",
            "index": index,
            "count": slots,
            "devmem": 65536,
            "devcore": 20,
            "type": vendor.name,
            "health": True,
            "custominfo": {} if network is None else {"NetworkID": network},
        }
        for index, network in enumerate(networks)
    ]
    annotations = {"hami-vnpu-core": "true"} if soft else {}
    return list(vendor.node_devices(register(vendor, entries, **annotations)))


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
    found = request and (
        request.count,
        request.memory_mib,
        request.memory_percent,
        request.core_percent,
    )

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


def placed(vendor: Ascend, *amounts: tuple[int, int], soft: bool = False) -> dict[str, str]:
    """What is written when the second of two containers gets these (memory, core)."""
    shares = tuple(
        DeviceShare(
            uuid=GpuUuid(f"npu-{i}"), vendor=vendor.name, memory_mib=memory, core_percent=core
        )
        for i, (memory, core) in enumerate(amounts)
    )
    return vendor.pod_annotations(
        Placed(
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
    written = placed(B3, (16384, 0))

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
    assert placed(B3) == {}


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
    (entry,) = json.loads(placed(vendor, (memory, 0))[f"huawei.com/{vendor.name}"])

    assert entry.get("temp") == template
    assert entry["memory"] == memory


def test_soft_slices_have_no_template_but_cores() -> None:
    written = placed(B3, (1000, 30), (0, 0), soft=True)

    assert written["huawei.com/Ascend910B3"] == (
        '[{"UUID":"npu-0","memory":1000,"core":30},{"UUID":"npu-1"}]'
    )


# --- which chips


def test_soft_slices_are_refused_by_nodes_that_cannot_cut() -> None:
    hard, soft = chips(B3, [0, 0]), chips(B3, [0, 0], soft=True)
    limits = {NPU: 1, MEM: 1000, CORES: 30}

    assert refused(put(B3, use(hard), limits, annotations=SOFT), 2) == "1/2 ModeNotFit"
    answer = put(B3, use(soft), limits, annotations=SOFT)
    assert picked(answer) == ["npu-1"]
    assert [(s.memory_mib, s.core_percent, s.type) for s in answer.shares] == [(1000, 30, "")]


def test_soft_slices_count_cores_in_percent_of_a_chip() -> None:
    (chip,) = chips(B3, [0], soft=True)
    request = B3.parse_request(container({NPU: 1, MEM: 1000, CORES: 30}))
    soft = B3.select(SOFT)
    assert request is not None

    def met(core: int, wanted: int = 30) -> Rule:
        (card,) = use([chip], npu_0=(1, 0, core))
        asked = B3.parse_request(container({NPU: 1, MEM: 1000, CORES: wanted}))
        assert asked is not None
        return judge(B3.rules, card, asked, soft)

    assert B3.rules.need(request, soft, chip) == Need(1000, 30, 100)
    assert B3.rules.need(request, Selection(), chip) == Need(1000, 30, None)
    assert met(70) == Rule.FITS
    assert met(71) == Rule.CORES
    assert met(0, wanted=100) == Rule.EXCLUSIVE
    assert met(100, wanted=0) == Rule.CORES_EXHAUSTED
    assert met(20, wanted=0) == Rule.FITS


@pytest.mark.parametrize(
    ("networks", "busy", "count", "taken"),
    [
        ([0, 0, 1, 1], (), 2, [3, 2]),
        ([0, 0, 1, 1], (3,), 2, [1, 0]),
        ([0, 0, 1, 1], (3,), 3, [2, 1, 0]),
        ([0, 1, 1, 1, 0, 0], (), 2, [5, 4]),
        ([0, 1, 1, 1, 0, 0], (5,), 4, [3, 2, 1, 4]),
        ([0, 0, 1, None], (), 2, [3, 2]),
        ([1, 1.0, 2, "x"], (), 2, [1, 0]),
        ([0, 0, 0, 1], (), 1, [3]),
    ],
    ids=[
        "ties",
        "fuller",
        "all",
        "first of equals",
        "most, then the rest",
        "unknown",
        "numbers",
        "one",
    ],
)
def test_several_chips_come_from_the_networks_with_most_of_them(
    networks, busy, count, taken
) -> None:
    used = {f"npu_{index}": (7, 0, 0) for index in busy}

    assert picked(put(B3, use(chips(B3, networks), **used), {NPU: count})) == [
        f"npu-{index}" for index in taken
    ]


def test_only_910_chips_have_networks() -> None:
    npu, *_ = names("Ascend310P")
    cards = use(chips(P310, [0, 0, 1]))

    assert picked(put(P310, cards, {npu: 2})) == ["npu-2", "npu-1"]
    assert P310.rules.scorer is None
    assert B3.rules.scorer is score_networks


def test_modules_of_two_are_taken_whole() -> None:
    npu, *_ = names("Ascend910C")
    cards = chips(C, [0, 0, 0, 0, 1, 1], slots=1)

    assert picked(put(C, use(cards, npu_4=(1, 0, 0)), {npu: 2})) == ["npu-3", "npu-2"]
    assert picked(put(C, use(cards), {npu: 4})) == ["npu-5", "npu-4", "npu-3", "npu-2"]
    assert picked(put(C, use(cards, npu_5=(1, 0, 0)), {npu: 1})) == ["npu-4"]


def test_too_few_whole_modules_are_counted_over_the_chips_asked_for() -> None:
    npu, *_ = names("Ascend910C")
    cards = chips(C, [None] * 6, slots=1)
    held = use([unhealthy(cards[0]), *cards[1:]], npu_3=(1, 0, 0))

    assert refused(put(C, held, {npu: 4}), 6) == (
        "1/4 CardNotHealth, 1/4 CardTimeSlicingExhausted, 2/4 AllocatedCardsInsufficientRequest"
    )
    assert refused(put(C, use(cards), {npu: 3}), 6) == "4/3 AllocatedCardsInsufficientRequest"
    halves = use(cards, npu_0=(1, 0, 0), npu_2=(1, 0, 0), npu_4=(1, 0, 0))
    assert refused(put(C, halves, {npu: 2}), 6) == (
        "0/2 AllocatedCardsInsufficientRequest, 3/2 CardTimeSlicingExhausted"
    )


def test_too_few_chips_are_refused_with_the_reason_of_each() -> None:
    cards = chips(B3, [0, 0, 1])
    held = use([unhealthy(cards[0]), *cards[1:]], npu_1=(1, 65536, 0))

    assert refused(put(B3, held, {NPU: 2}), 3) == (
        "1/3 AllocatedCardsInsufficientRequest, 1/3 CardInsufficientMemory, 1/3 CardNotHealth"
    )
    assert refused(put(B3, held[:2], {NPU: 2}), 2) == (
        "1/2 CardInsufficientMemory, 1/2 CardNotHealth"
    )


@pytest.mark.parametrize(
    ("vendor", "count", "annotations", "networks", "applies", "decides"),
    [
        (B3, 1, {}, [0, 1], False, False),
        (B3, 2, {}, [0, 1], True, False),
        (B3, 2, {}, [0, None], False, False),
        (B3, 1, SOFT, [0, 1], True, True),
        (P310, 2, {}, [0, 1], False, False),
        (C, 1, {}, [0, 1], False, False),
        (C, 2, {}, [None, None], True, True),
    ],
)
def test_the_chooser_is_asked_only_where_it_matters(
    vendor, count, annotations, networks, applies, decides
) -> None:
    request = vendor.parse_request(container({vendor.resources.count: count}))
    selection = vendor.select(annotations)

    assert vendor.rules.applies(request, selection, chips(vendor, networks)) is applies
    assert vendor.rules.decides(request, selection) is decides


def taken(*indexes: int) -> list[DeviceShare]:
    return [
        DeviceShare(uuid=GpuUuid(f"npu-{i}"), vendor=B3.name, memory_mib=0, core_percent=0)
        for i in indexes
    ]


@pytest.mark.parametrize(
    ("networks", "containers", "score"),
    [
        ([0, 0, 1], [taken(0, 1)], 10),
        ([0, 0, 1], [taken(0, 2)], 5),
        ([0, 0, 1], [taken(0, 1, 2), [], taken(2)], 10 * (2 / 3 + 1)),
        ([0, None, 1], [taken(0)], 10),
        ([0, None, 1], [taken(0), taken(1)], 0),
        ([0], [[]], 0),
    ],
)
def test_the_score_is_ten_times_the_share_of_chips_in_one_network(
    networks, containers, score
) -> None:
    before = use(chips(B3, networks))

    assert score_networks(before, containers, Selection(), "spread") == pytest.approx(score)
