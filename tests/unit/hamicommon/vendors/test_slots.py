"""Biren and Vastai by protocol 1.14 and 1.15: slots, and dies of few cards."""

import json
from datetime import UTC, datetime

import pytest
from hamicommon.device_config import BirenConfig, VastaiConfig
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import Need
from hamicommon.vendors.interface.vendor import PlacedPod
from hamicommon.vendors.slots import Biren, Vastai, in_dies, score_dies

from tests.unit.hamicommon.vendors.asking import (
    container,
    describe_refusal,
    judge,
    list_picked,
    put,
    unhealthy,
    use,
)

BIREN = Biren(BirenConfig())
VASTAI = Vastai(VastaiConfig())
BOTH = pytest.mark.parametrize(
    ("vendor", "resource", "register", "handshake"),
    [
        (BIREN, "birentech.com/gpu", "hami.io/node-biren-register", "hami.io/node-handshake-biren"),
        (VASTAI, "vastaitech.com/va", "hami.io/node-va-register", "hami.io/node-handshake-va"),
    ],
    ids=["biren", "vastai"],
)
VA = "vastaitech.com/va"


def die(index: int, aic: object = None, strategy: str = "die") -> GpuDevice:
    info = {"DeviceStrategy": strategy} | ({} if aic is None else {"AIC": aic})
    return GpuDevice(
        uuid=GpuUuid(f"VA-{index}"),
        index=index,
        vendor="Vastai",
        type="Vastai",
        slots=1,
        memory_mib=32768,
        core_percent=100,
        info=info,
    )


TWO_BY_TWO = [die(0, "0"), die(1, "0"), die(2, "1"), die(3, "1")]


@BOTH
def test_a_request_is_a_count_and_takes_no_memory_and_no_cores(
    vendor, resource, register, handshake
) -> None:
    request = vendor.parse_request(container({resource: 2}))

    assert request == DeviceRequest(vendor=vendor.name, count=2, memory_percent=100)
    assert vendor.parse_request(container(None, {resource: 1})).count == 1
    assert vendor.parse_request(container({resource: 0})) is None
    assert vendor.parse_request(container()) is None
    assert vendor.rules.need(request, Selection(), die(0)) == Need(0, 0)
    with pytest.raises(
        InvalidRequest, match=f"container 'c': {resource} is 1.5: expected a whole number"
    ):
        vendor.mutate(container({resource: "1.5"}), {})


@BOTH
def test_admission_takes_the_count_in_limits_and_changes_nothing(
    vendor, resource, register, handshake
) -> None:
    asked = container({resource: 1})

    assert vendor.mutate(asked, {}).wants
    assert asked == container({resource: 1})
    assert not vendor.mutate(container(None, {resource: 1}), {}).wants


@BOTH
def test_cards_are_registered_as_json_and_have_100_cores(
    vendor, resource, register, handshake
) -> None:
    text = json.dumps([{"id": "x", "count": 1, "devcore": 7, "custominfo": {"AIC": "3"}}])
    (card,) = vendor.node_devices({"metadata": {"annotations": {register: text}}})

    assert (card.uuid, card.vendor, card.core_percent) == ("x", vendor.name, 100)
    assert card.info["AIC"] == "3"
    assert vendor.node_devices({}) == ()
    assert vendor.node_pair_scores({}) == {}


@BOTH
def test_a_plugin_that_leaves_the_handshake_open_is_dead_without_capacity(
    vendor, resource, register, handshake
) -> None:
    asked = {"metadata": {"annotations": {handshake: "Requesting_2026-01-02 03:04:05"}}}

    assert not vendor.plugin_alive(asked)
    assert vendor.plugin_alive(asked | {"status": {"allocatable": {resource: "1"}}})


@BOTH
def test_only_uuids_are_selected_by_annotation(vendor, resource, register, handshake) -> None:
    domain = resource.partition("/")[0]
    chosen = vendor.select(
        {
            f"{domain}/use-gpuuuid": "a,b",
            f"{domain}/nouse-gpuuuid": "c",
            f"{domain}/use-va": "x",
            f"{domain}/use-biren": "x",
        }
    )

    assert (chosen.use_uuids, chosen.avoid_uuids) == (("a", "b"), ("c",))
    assert chosen.use_types == ()


@BOTH
def test_slices_are_written_twice_with_the_name_and_zero_amounts(
    vendor, resource, register, handshake
) -> None:
    share = DeviceShare(uuid=GpuUuid("x"), vendor=vendor.name, memory_mib=0, core_percent=0)
    placed = PlacedPod(
        node=NodeName("n"),
        containers=[
            ContainerGrant(index=0, name="a", role="app"),
            ContainerGrant(index=1, name="b", role="app", shares=(share,)),
        ],
        cards={},
        selections={},
        now=datetime.now(UTC),
    )
    key = f"hami.io/{vendor.name}-devices-"

    assert vendor.pod_annotations(placed) == {
        f"{key}to-allocate": f";x,{vendor.name},0,0:;",
        f"{key}allocated": f";x,{vendor.name},0,0:;",
    }


@BOTH
def test_a_card_can_only_lack_health_a_uuid_a_slot_or_be_shared_under_mutex(
    vendor, resource, register, handshake
) -> None:
    request = vendor.parse_request(container({resource: 1}))
    full = use([die(0)], VA_0=(1, 99999, 100))[0]

    assert judge(vendor.rules, full, request, Selection()) == Rule.SLOTS
    assert set(vendor.rules.order) == {
        Rule.NOT_HEALTHY,
        Rule.CORDONED,
        Rule.UUID,
        Rule.SLOTS,
        Rule.MUTEX,
    }


def test_biren_has_no_die_mode() -> None:
    assert BIREN.rules.chooser is None
    assert BIREN.rules.scorer is None


def test_die_mode_is_decided_by_the_first_card() -> None:
    assert in_dies([die(1, strategy="card"), die(0)])
    assert not in_dies([die(1), die(0, strategy="card")])
    assert not in_dies([])
    applies = VASTAI.rules.applies
    request = DeviceRequest(vendor="Vastai", count=1)
    assert applies(request, Selection(), TWO_BY_TWO)
    assert not applies(request, Selection(), [die(0, strategy="card")])


def test_as_many_dies_as_wanted_are_all_taken() -> None:
    assert list_picked(put(VASTAI, use(TWO_BY_TWO), {VA: 4})) == ["VA-3", "VA-2", "VA-1", "VA-0"]


def test_one_die_is_the_first() -> None:
    assert list_picked(put(VASTAI, use(TWO_BY_TWO), {VA: 1})) == ["VA-3"]


def test_several_dies_come_from_the_cards_with_most_of_them_free() -> None:
    cards = use(TWO_BY_TWO, VA_3=(1, 0, 0))

    assert list_picked(put(VASTAI, cards, {VA: 2})) == ["VA-1", "VA-0"]
    assert list_picked(put(VASTAI, use(TWO_BY_TWO), {VA: 2})) == ["VA-3", "VA-2"]
    assert list_picked(put(VASTAI, use(TWO_BY_TWO), {VA: 3})) == ["VA-3", "VA-2", "VA-1"]


def test_a_die_that_names_no_card_is_a_card_of_its_own() -> None:
    cards = use([die(0, "0"), die(1, "0"), die(2, 1.5), die(3)])

    assert list_picked(put(VASTAI, cards, {VA: 3})) == ["VA-1", "VA-0", "VA-3"]


def test_mutex_spares_the_idle_dies_of_a_card_in_use() -> None:
    cards = use(TWO_BY_TWO, VA_3=(1, 0, 0))
    mutex = ("mutex",)

    assert list_picked(put(VASTAI, cards, {VA: 1}, policies=mutex)) == ["VA-1"]
    assert list_picked(put(VASTAI, cards, {VA: 1})) == ["VA-2"]
    assert describe_refusal(put(VASTAI, cards, {VA: 3}, policies=mutex), 4) == (
        "1/4 CardTimeSlicingExhausted, 1/4 ExclusiveDeviceAllocateConflict, "
        "2/4 AllocatedCardsInsufficientRequest"
    )
    assert VASTAI.rules.decides(DeviceRequest(vendor="Vastai", count=1), Selection())


def test_a_refusal_counts_every_die_and_those_that_were_free() -> None:
    broken = [unhealthy(card) for card in TWO_BY_TWO[:2]]

    assert describe_refusal(put(VASTAI, use([*broken, *TWO_BY_TWO[2:]]), {VA: 3}), 4) == (
        "2/4 AllocatedCardsInsufficientRequest, 2/4 CardNotHealth"
    )
    assert describe_refusal(put(VASTAI, use(broken), {VA: 1}), 2) == "2/2 CardNotHealth"


def shares(*indexes: int) -> list[DeviceShare]:
    return [
        DeviceShare(uuid=GpuUuid(f"VA-{i}"), vendor="Vastai", memory_mib=0, core_percent=0)
        for i in indexes
    ]


@pytest.mark.parametrize(
    ("cards", "containers", "score"),
    [
        (TWO_BY_TWO, [shares(0, 1)], 1.0),
        (TWO_BY_TWO, [shares(0, 2)], 0.5),
        (TWO_BY_TWO, [shares(0, 1, 2), [], shares(3)], 2 / 3 + 1),
        (TWO_BY_TWO, [[]], 0.0),
        ([die(0, "0", "card"), die(1, "0", "card")], [shares(0, 1)], 0.0),
        ([die(0, "0"), die(1)], [shares(0, 1)], 0.0),
    ],
    ids=["one card", "two cards", "summed", "nothing", "whole cards", "unknown card"],
)
def test_the_score_is_the_share_of_dies_on_one_card(cards, containers, score) -> None:
    assert score_dies(use(cards), containers, Selection(), "binpack") == pytest.approx(score)
