"""AWS Neuron by protocol 1.13: devices, cores as bitmasks, neighbours."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hamicommon.device_config import AwsNeuronConfig
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.domain.requests import Selection
from hamicommon.errors import InvalidRequest
from hamicommon.placement.vendor_policy import Chosen
from hamicommon.vendors.awsneuron import AwsNeuron
from hamicommon.vendors.interface.vendor import PlacedPod
from hamicommon.vendors.pod_request import wants_devices
from hamicommon.vendors.registry import Vendors
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon.vendors.asking import (
    container,
    describe_refusal,
    list_picked,
    put,
    unhealthy,
    use,
)

DEV = "aws.amazon.com/neuron"
CORE = "aws.amazon.com/neuroncore"
AWS = AwsNeuron(AwsNeuronConfig())


def node(devices: Any, cores: Any = None, instance: str = "trn1.32xlarge") -> dict[str, Any]:
    capacity = {DEV: devices} | ({} if cores is None else {CORE: cores})
    labels = {"node.kubernetes.io/instance-type": instance}
    return {"metadata": {"name": "n", "labels": labels}, "status": {"capacity": capacity}}


def devices(count: int, each: int = 2, instance: str = "trn1.32xlarge") -> list[GpuDevice]:
    return list(AWS.node_devices(node(count, count * each, instance)))


def masks(answer: object) -> list[int]:
    assert isinstance(answer, Chosen), answer
    return [share.core_percent for share in answer.shares]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({DEV: 1}, (1, 2, None)),
        ({DEV: 16}, (16, 2, None)),
        ({DEV: 1, CORE: 7}, (1, 2, None)),
        ({CORE: 1}, (1, 1, "1")),
        ({CORE: "2"}, (1, 2, "2")),
        ({CORE: 8}, (4, 2, "8")),
    ],
)
def test_devices_go_before_cores_and_cores_come_to_devices(limits, expected) -> None:
    request = AWS.parse_request(container(limits))

    assert (request.count, request.core_percent, request.traits.get("cores")) == expected
    assert AWS.parse_request(container(None, limits)) == request


@pytest.mark.parametrize("limits", [{}, {DEV: 0}, {DEV: 0, CORE: 2}, {CORE: 0}])
def test_nothing_asked_for_is_no_request(limits) -> None:
    assert AWS.parse_request(container(limits)) is None


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        ({DEV: "1.5"}, f"container 'c': {DEV} is 1.5: expected a whole number of cards"),
        ({DEV: "2147483648"}, "a whole number of cards"),
        ({DEV: -1}, "a whole number of cards"),
        ({CORE: 3}, f"container 'c': {CORE} must be 1 or a multiple of 2, got 3"),
        ({CORE: "500m"}, "expected 1 or a multiple of 2 NeuronCores"),
        ({CORE: -2}, "expected 1 or a multiple of 2 NeuronCores"),
        ({DEV: 0}, f"{DEV} must be greater than 0"),
        ({CORE: 0}, f"{CORE} must be greater than 0"),
    ],
)
def test_admission_refuses_what_can_never_be_given(limits, wrong) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        AWS.mutate(container(limits), {})


def test_admission_takes_devices_or_cores_of_limits_or_requests() -> None:
    assert AWS.mutate(container({DEV: 1}), {}).wants
    assert AWS.mutate(container(None, {CORE: 2}), {}).wants
    assert not AWS.mutate(container({"cpu": 1}), {}).wants


def test_a_pod_that_asks_for_cores_alone_wants_devices() -> None:
    vendors = Vendors((AWS,))

    assert wants_devices({"spec": {"containers": [container({CORE: 1})]}}, vendors)
    assert not wants_devices({"spec": {"containers": [container({CORE: 0})]}}, vendors)


def test_devices_come_from_the_capacity_and_know_their_own_cores() -> None:
    first, second = AWS.node_devices(node("2", "8", "inf1.6xlarge"))

    assert (first.uuid, second.uuid) == ("n-AWSNeuron-0", "n-AWSNeuron-1")
    assert (first.index, second.index) == (0, 1)
    assert (second.type, second.vendor) == ("AWSNeuron", "AWSNeuron")
    assert (second.slots, second.core_percent, second.memory_mib) == (4, 0b1111, 0)
    assert (second.info, second.healthy) == ({"AWSNodeType": "inf1.6xlarge"}, True)
    assert [d.core_percent for d in AWS.node_devices(node(1, 2))] == [0b11]
    assert AWS.node_pair_scores({}) == {}


def test_without_a_capacity_of_cores_a_device_has_two() -> None:
    (device,) = AWS.node_devices(node(1))

    assert (device.slots, device.core_percent) == (2, 0b11)


@pytest.mark.parametrize(
    ("count", "cores", "wrong"),
    [
        ("1.5", 2, f"node n: capacity of {DEV} is 1.5"),
        (2, "junk", "junk"),
        (1, 64, "at most 1024 devices of 31 cores"),
        (100000, 200000, "at most 1024 devices"),
    ],
)
def test_an_absurd_capacity_is_refused(count, cores, wrong) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        AWS.node_devices(node(count, cores))
    assert AWS.node_devices({}) == ()


@pytest.mark.parametrize(
    ("each", "used", "cores", "mask"),
    [
        (2, 0, 2, 3),
        (2, 0, 1, 1),
        (2, 1, 1, 2),
        (2, 2, 1, 1),
        (4, 0b0101, 2, 0b1010),
        (1, 0, 1, 1),
    ],
)
def test_cores_of_one_device_are_its_lowest_free_bits(each, used, cores, mask) -> None:
    (device,) = devices(1, each)
    held = use([device], n_AWSNeuron_0=(used.bit_count(), 0, used))

    assert masks(put(AWS, held, {CORE: cores})) == [mask]


def test_a_whole_device_is_all_its_cores() -> None:
    assert masks(put(AWS, use(devices(1, 4)), {DEV: 1})) == [0b1111]


def test_a_device_with_too_few_free_cores_is_passed_over() -> None:
    cards = use(devices(2), n_AWSNeuron_1=(1, 0, 2))

    assert list_picked(put(AWS, cards, {CORE: 2})) == ["n-AWSNeuron-0"]
    assert list_picked(put(AWS, cards, {CORE: 1})) == ["n-AWSNeuron-1"]
    # Of four cores two are used, not the lowest: the free mask is great, the free cores are few.
    high = use(devices(1, 4), n_AWSNeuron_0=(3, 0, 0b0111))
    assert describe_refusal(put(AWS, high, {CORE: 2}), 1) == "1/1 CardInsufficientCore"


def test_one_device_is_refused_card_by_card() -> None:
    cards = devices(3)
    held = use([unhealthy(cards[0]), *cards[1:]], n_AWSNeuron_1=(2, 0, 3), n_AWSNeuron_2=(1, 0, 1))

    assert describe_refusal(put(AWS, held, {DEV: 1}), 3) == (
        "1/3 CardInsufficientCore, 1/3 CardNotHealth, 1/3 CardTimeSlicingExhausted"
    )
    assert describe_refusal(put(AWS, held, {CORE: 1}, policies=("mutex",)), 3) == (
        "1/3 CardNotHealth, 1/3 CardTimeSlicingExhausted, 1/3 ExclusiveDeviceAllocateConflict"
    )


def test_uuids_select_for_one_device_and_not_for_several() -> None:
    cards = use(devices(4, instance="inf2.24xlarge"))
    only = {"aws.amazon.com/use-neuron-uuid": "n-AWSNeuron-0"}
    never = {"aws.amazon.com/nouse-neuron-uuid": "n-AWSNeuron-0"}

    assert list_picked(put(AWS, cards, {DEV: 1}, annotations=only)) == ["n-AWSNeuron-0"]
    assert (
        describe_refusal(put(AWS, cards[:1], {DEV: 1}, annotations=never), 1)
        == "1/1 CardUuidMismatch"
    )
    assert list_picked(put(AWS, cards, {DEV: 2}, annotations=never)) == [
        "n-AWSNeuron-0",
        "n-AWSNeuron-1",
    ]


def indexes(answer: object) -> list[int]:
    assert isinstance(answer, Chosen), answer
    return [int(share.uuid.rsplit("-", 1)[1]) for share in answer.shares]


@pytest.mark.parametrize(
    ("instance", "busy", "count", "taken"),
    [
        ("inf2.48xlarge", (), 3, [0, 1, 2]),
        ("inf2.48xlarge", (0,), 3, [1, 2, 3]),
        ("Inf1.24xlarge", (1, 4), 2, [2, 3]),
        ("trn1.32xlarge", (), 4, [0, 1, 2, 3]),
        ("trn1.32xlarge", (1,), 4, [4, 5, 6, 7]),
        ("trn1.32xlarge", (), 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("inf2.48xlarge", (2, 5), 3, None),
        ("trn1.32xlarge", (1, 5), 4, None),
        ("trn1.32xlarge", (), 2, None),
        ("", (), 3, None),
    ],
)
def test_several_devices_are_free_neighbours(instance, busy, count, taken) -> None:
    used = {f"n_AWSNeuron_{index}": (1, 0, 1) for index in busy}
    answer = put(AWS, use(devices(8, instance=instance), **used), {DEV: count})

    if taken is None:
        assert describe_refusal(answer, 8) == "1/8 NumaNotFit"
    else:
        assert indexes(answer) == taken
        assert set(masks(answer)) == {3}


def test_neighbours_are_found_by_index_whatever_the_order_of_preference() -> None:
    cards = use(devices(4, instance="inf2.24xlarge"), n_AWSNeuron_3=(1, 0, 1))
    shuffled = [cards[3], cards[0], cards[2], cards[1]]

    assert indexes(put(AWS, shuffled, {DEV: 3})) == [0, 1, 2]
    assert (
        describe_refusal(put(AWS, [cards[i] for i in (3, 0, 1)], {DEV: 3}), 3) == "1/3 NumaNotFit"
    )


def test_an_unhealthy_device_has_no_neighbours() -> None:
    cards = devices(4, instance="inf2.24xlarge")

    held = use([cards[0], unhealthy(cards[1]), *cards[2:]])
    assert indexes(put(AWS, held, {DEV: 2})) == [2, 3]


@pytest.mark.parametrize(
    ("each", "cores", "taken"),
    [
        (2, 8, [0, 1, 2, 3]),
        (4, 8, [0, 0, 1, 1]),
        (4, 4, [3, 3]),
        (4, 2, [3]),
        (8, 4, [3, 3]),
        (8, 16, [0, 0, 0, 0, 1, 1, 1, 1]),
        (3, 2, [3]),
        (1, 1, [3]),
    ],
)
def test_how_many_devices_cores_come_to_follows_from_the_nodes_devices(each, cores, taken) -> None:
    cards = use(devices(4, each, "inf1.24xlarge"))

    assert indexes(put(AWS, cards, {CORE: cores})) == taken


def test_slices_of_a_device_with_many_cores_are_pairs_of_them() -> None:
    assert masks(put(AWS, use(devices(1, 4)), {CORE: 4})) == [0b0011, 0b1100]
    held = use(devices(1, 8), n_AWSNeuron_0=(1, 0, 0b0100))
    assert masks(put(AWS, held, {CORE: 4})) == [0b00011, 0b11000]


def test_cores_that_would_split_a_device_do_not_fit() -> None:
    cards = use(devices(2, 4))
    single = use(devices(2, 1))

    assert describe_refusal(put(AWS, single, {CORE: 2}), 2) == "2/2 CardInsufficientCore"

    assert describe_refusal(put(AWS, cards, {CORE: 6}), 2) == "2/2 CardInsufficientCore"
    assert describe_refusal(put(AWS, cards, {CORE: 16}), 2) == "NodeInsufficientDevice"
    assert describe_refusal(put(AWS, cards, {DEV: 3}), 2) == "NodeInsufficientDevice"
    assert describe_refusal(put(AWS, [], {DEV: 1}), 0) == "NodeInsufficientDevice"


@settings(max_examples=100)
@given(each=st.integers(1, 8), wants=st.lists(st.sampled_from([1, 2, 4, 6, 8]), max_size=12))
def test_no_core_is_given_twice(each: int, wants: list[int]) -> None:
    cards = use(devices(4, each, "inf1.24xlarge"))
    for cores in wants:
        answer = put(AWS, cards, {CORE: cores})
        if not isinstance(answer, Chosen):
            continue
        request = AWS.parse_request(container({CORE: cores}))
        assert request is not None
        assert len(answer.shares) == request.count
        given_: dict[str, int] = {}
        for share in answer.shares:
            assert not given_.get(share.uuid, 0) & share.core_percent
            given_[share.uuid] = given_.get(share.uuid, 0) | share.core_percent
        assert sum(mask.bit_count() for mask in given_.values()) == cores
        held: dict[str, tuple[int, int, int]] = {}
        for card in cards:
            mask = given_.get(card.device.uuid, 0)
            assert not mask & card.used_core_percent
            assert mask | card.device.core_percent == card.device.core_percent
            taken = card.used_core_percent | mask
            slots = card.used_slots + (mask > 0)
            held[card.device.uuid.replace("-", "_")] = (slots, 0, taken)
        cards = use([card.device for card in cards], **held)


def make_placed_pod(*containers: tuple[DeviceShare, ...], each: int = 2) -> PlacedPod:
    return PlacedPod(
        node=NodeName("n"),
        containers=[
            ContainerGrant(index=index, name=f"c{index}", role="app", shares=shares)
            for index, shares in enumerate(containers)
        ],
        cards={device.uuid: device for device in devices(8, each)},
        selections={"AWSNeuron": Selection()},
        now=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    )


def share(index: int, mask: int, *, by_core: bool) -> DeviceShare:
    return DeviceShare(
        uuid=GpuUuid(f"n-AWSNeuron-{index}"),
        vendor="AWSNeuron",
        memory_mib=0,
        core_percent=mask,
        detail={"neuroncore": True} if by_core else {},
    )


def test_whole_devices_are_written_with_their_indexes() -> None:
    written = AWS.pod_annotations(
        make_placed_pod((share(2, 3, by_core=False), share(3, 3, by_core=False)))
    )

    assert written == {
        "hami.io/aws-neuron-devices-allocated": (
            "n-AWSNeuron-2,AWSNeuron,0,3:n-AWSNeuron-3,AWSNeuron,0,3:;"
        ),
        "AWS_NEURON_IDS": "2,3",
        "NEURON_ALLOC_TIME": "1767323045678901000",
        "NEURON_ALLOCATED": "false",
        "aws.amazon.com/predicate-node": "n",
    }
    assert set(written) <= {AWS.keys.allocated, *AWS.keys.extra}


@pytest.mark.parametrize(
    ("each", "grants", "ids"),
    [
        (2, [(3, 1)], "6"),
        (2, [(3, 2)], "7"),
        (2, [(1, 3), (2, 3)], "2,3,4,5"),
        (4, [(1, 0b1010)], "5,7"),
    ],
)
def test_cores_are_written_with_their_indexes_on_the_node(each, grants, ids) -> None:
    shares = tuple(share(index, mask, by_core=True) for index, mask in grants)
    written = AWS.pod_annotations(make_placed_pod((), shares, each=each))

    assert written["AWS_NEURON_IDS"] == ids
    assert written["NEURON_RESOURCE_TYPE"] == CORE
    assert written["hami.io/aws-neuron-devices-allocated"].startswith(";n-AWSNeuron-")


def test_a_pod_without_devices_has_no_annotations() -> None:
    assert AWS.pod_annotations(make_placed_pod(())) == {}


def test_the_slice_remembers_that_cores_were_asked_for() -> None:
    by_core = put(AWS, use(devices(1)), {CORE: 2})
    whole = put(AWS, use(devices(1)), {DEV: 1})

    assert isinstance(by_core, Chosen)
    assert isinstance(whole, Chosen)
    assert by_core.shares[0].detail == {"neuroncore": True}
    assert whole.shares[0].detail == {}


def test_a_choice_holds_only_for_the_device_as_it_was_seen() -> None:
    assert AWS.rules.exact
    assert AWS.rules.chooser_decides
    assert AWS.rules.reuses_card
