"""Kunlun slices, by protocol 1.10."""

import json

import pytest
from hamicommon.device_config import KunlunConfig
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.requests import DeviceRequest
from hamicommon.errors import InvalidRequest
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import Chosen, NotChosen
from hamicommon.vendors.kunlun import KunlunVxpu, choose_cut_cards

from tests.unit.hamicommon.vendors.standing import (
    ask,
    container,
    make_placed_pod,
    node,
    pod,
    share,
    uuids,
)

XPU = KunlunVxpu(KunlunConfig())
COUNT, MEM = "kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory"
REGISTER = json.dumps(
    [
        {"id": f"XPU-{i}", "index": i, "count": 4, "devmem": 98304, "devcore": 100}
        | {"type": "XPU-P800", "health": True, "numa": i // 4}
        for i in range(8)
    ]
)
NODE = node({COUNT: "32"}, {"hami.io/node-register-xpu": REGISTER})
CARDS = XPU.node_devices(NODE)


def request(count: int, memory: int) -> DeviceRequest:
    found = XPU.parse_request(container({COUNT: count, MEM: memory}))
    assert found is not None
    return found


def walk(*used: tuple[int, int]) -> list[DeviceUsage]:
    """Cards with (slots, MiB) in use, in the order of the loop: the last card first."""
    amounts = [*used, *[(0, 0)] * (8 - len(used))]
    return [
        DeviceUsage(device=card, used_slots=slots, used_memory_mib=memory)
        for card, (slots, memory) in zip(CARDS, amounts, strict=True)
    ][::-1]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({COUNT: 1}, (1, 98304, 100, 100)),
        ({COUNT: 1, MEM: 24576}, (1, 24576, None, 25)),
        ({COUNT: 2, MEM: 24577}, (2, 49152, None, 50)),
        ({COUNT: 1, MEM: 49153}, (1, 98304, None, 100)),
        ({COUNT: 1, MEM: 200000}, (1, 98304, None, 100)),
        ({COUNT: 1, MEM: 0}, (1, 24576, None, 25)),
        ({COUNT: 0, MEM: 1}, None),
        ({MEM: 24576}, None),
    ],
    ids=str,
)
def test_a_request_is_for_a_quarter_a_half_or_all_of_a_card(limits, expected) -> None:
    found = XPU.parse_request(container(limits))

    assert expected == (
        found and (found.count, found.memory_mib, found.memory_percent, found.core_percent)
    )


def test_malformed_memory_is_refused_and_not_dropped() -> None:
    with pytest.raises(InvalidRequest, match=f"{MEM} is 24Gi: .*the unit is MiB: write 24576"):
        XPU.parse_request(container({COUNT: 1, MEM: "24Gi"}))


def test_admission_writes_the_size_of_slice_in_limits_and_requests() -> None:
    asking = container({COUNT: 1, MEM: 30000})

    admitted = XPU.mutate(asking, pod(asking))

    assert admitted.wants
    assert admitted.warnings == ()
    assert asking["resources"] == {
        "limits": {COUNT: 1, MEM: "49152"},
        "requests": {MEM: "49152"},
    }


def test_admission_warns_of_more_memory_than_a_card_has() -> None:
    (warning,) = XPU.mutate(container({COUNT: 1, MEM: 100000}), pod({})).warnings

    assert warning == f"container 'c': {MEM} 100000 is more than one card has and is taken as 98304"


@pytest.mark.parametrize(
    ("limits", "wants"), [({COUNT: 1}, True), ({MEM: 5}, False), ({}, False)], ids=str
)
def test_without_count_or_memory_in_limits_admission_changes_nothing(limits, wants) -> None:
    asking = container(dict(limits))

    assert XPU.mutate(asking, pod(asking)).wants is wants
    assert asking == container(limits)


def test_slices_are_taken_by_the_graph() -> None:
    answer = choose_cut_cards(ask(request(1, 24576), walk((1, 24576))))

    assert isinstance(answer, Chosen)
    assert uuids(answer.shares) == ["XPU-0"]
    assert {(s.memory_mib, s.core_percent) for s in answer.shares} == {(24576, 25)}


def test_a_card_is_cut_into_equal_parts() -> None:
    halves = walk((1, 49152), (2, 49152), (0, 0), (1, 24576))

    answer = choose_cut_cards(ask(request(1, 24576), halves))

    assert isinstance(answer, Chosen)
    # Card 0 holds a half, so the wing has three with room: 1 (two quarters), 2 and 3.
    assert uuids(answer.shares) == ["XPU-1"]
    assert choose_cut_cards(ask(request(8, 24576), halves)) == NotChosen(reasons={"NumaNotFit": 1})
    assert XPU.rules.exact


@pytest.mark.parametrize(
    ("rules", "reasons"),
    [
        ([Rule.MUTEX] * 2 + [Rule.UUID] * 6, {"ExclusiveDeviceAllocateConflict": 2}),
        ([Rule.UUID] * 6 + [Rule.MEMORY] * 2, {"CardUuidMismatch": 6}),
        ([Rule.MEMORY] * 8, {"NumaNotFit": 1}),
    ],
    ids=["mutex first", "then uuids", "else topology"],
)
def test_a_refusal_names_one_reason(rules, reasons) -> None:
    assert choose_cut_cards(ask(request(1, 24576), walk(), rules=rules)) == NotChosen(
        reasons=reasons
    )


def test_a_placed_pod_carries_its_slices_under_the_vendors_name() -> None:
    cut = share(CARDS[3], memory_mib=24576, core_percent=25)

    assert XPU.pod_annotations(make_placed_pod(CARDS, (cut,))) == {
        f"hami.io/xpu-devices-{key}": "XPU-3,XPU,24576,25:;" for key in ("to-allocate", "allocated")
    }


def test_selection_handshake_and_lock() -> None:
    found = XPU.select({"hami.io/use-xpu-uuid": "a", "baidu.com/nouse-gpuuuid": "b"})

    assert (found.use_uuids, found.avoid_uuids) == (("a",), ("b",))
    asked = {"hami.io/node-handshake-xpu": "Requesting_2026-01-01 00:00:00"}
    assert not XPU.plugin_alive(node(annotations=asked))
    assert XPU.plugin_alive(node())
    assert XPU.keys.lock == "hami.io/mutex.lock"
