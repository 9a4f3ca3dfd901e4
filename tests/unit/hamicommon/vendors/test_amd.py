"""AMD cards, by protocol 1.2."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hamicommon.device_config import AmdConfig
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import Need
from hamicommon.vendors.interface.vendor import MutateResult, PlacedPod
from hamicommon.vendors.shares import Amd

from tests.unit.devices import a_device
from tests.unit.hamicommon.vendors.asking import amounts_of, container, judge

GPU = "amd.com/gpu"
MEM = "amd.com/gpumem"
CORES = "amd.com/gpucores"
AMD = Amd(AmdConfig())
CARD = a_device(
    "amd-0", vendor="AMD", type="AMD Instinct MI300X", slots=4, memory_mib=1000, core_percent=304
)


def parse(limits: dict[str, Any] | None, requests: dict[str, Any] | None = None):
    request = AMD.parse_request(container(limits, requests))
    return amounts_of(request)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({GPU: 1}, (1, 0, 100, 100)),
        ({GPU: "2", MEM: "20000", CORES: "25"}, (2, 20000, None, 25)),
        ({GPU: 1, MEM: 0}, (1, 0, 100, 100)),
        ({GPU: 1, CORES: 1}, (1, 0, 100, 1)),
        ({GPU: 0}, None),
        ({GPU: 0, MEM: "junk"}, None),
        ({MEM: 100, CORES: 20}, None),
        ({}, None),
    ],
)
def test_a_request_is_count_memory_and_percent_of_cores(limits, expected) -> None:
    assert parse(limits) == expected


def test_only_limits_are_read() -> None:
    assert parse(None, {GPU: 1}) is None
    assert parse({GPU: 1}, {MEM: 5, CORES: 5}) == (1, 0, 100, 100)


@pytest.mark.parametrize(
    ("resource", "value", "right"),
    [
        (GPU, "-1", "a whole number of cards"),
        (GPU, "2147483648", "a whole number of cards"),
        (MEM, "-1", "a whole number of MiB"),
        (MEM, "16Gi", r"\(the unit is MiB: write 16384\)"),
        (CORES, "0", "a whole number from 1 to 100"),
        (CORES, "101", "a whole number from 1 to 100"),
        (CORES, "50.5", "a whole number from 1 to 100"),
    ],
)
def test_a_malformed_amount_is_refused_at_filter_and_at_admission(resource, value, right) -> None:
    asked = container({GPU: 1} | {resource: value})
    for read in (AMD.parse_request, lambda c: AMD.mutate(c, {"spec": {}})):
        with pytest.raises(InvalidRequest, match=right) as refused:
            read(asked)
        assert f"container 'c': {resource} is {value}" in str(refused.value)


@pytest.mark.parametrize(
    ("limits", "wants"),
    [({GPU: 1}, True), ({MEM: 5}, True), ({CORES: 5}, True), ({}, False)],
)
def test_admission_changes_nothing_and_takes_any_of_the_names(limits, wants) -> None:
    asked = container(limits)
    admitted = AMD.mutate(asked, {"spec": {}})

    assert asked == container(limits)
    assert admitted == MutateResult(wants=wants)


@pytest.mark.parametrize(
    ("percent", "units", "taken"),
    [(25, 304, 76), (100, 304, 304), (1, 304, 3), (1, 60, 1), (33, 10, 3), (100, 0, 1)],
)
def test_percent_become_compute_units_rounded_down_but_at_least_one(percent, units, taken) -> None:
    card = a_device("x", vendor="AMD", type="AMD", slots=1, memory_mib=9, core_percent=units)
    request = DeviceRequest(vendor="AMD", count=1, memory_percent=100, core_percent=percent)

    assert AMD.rules.need(request, Selection(), card) == Need(9, taken, None)


def test_a_card_without_compute_units_has_too_few() -> None:
    bare = a_device("x", vendor="AMD", type="AMD", slots=1, memory_mib=9, core_percent=0)
    request = DeviceRequest(vendor="AMD", count=1, memory_mib=1, core_percent=1)

    assert judge(AMD.rules, DeviceUsage(device=bare), request, Selection()) == Rule.CORES


def test_rules_end_with_memory_and_cores_and_know_no_exclusive_card() -> None:
    shared = DeviceUsage(device=CARD, used_slots=1, used_memory_mib=0, used_core_percent=0)
    whole = DeviceRequest(vendor="AMD", count=1, memory_mib=10, core_percent=100)
    full = DeviceUsage(device=CARD, used_slots=1, used_memory_mib=1000, used_core_percent=304)

    assert judge(AMD.rules, shared, whole, Selection()) == Rule.FITS
    assert judge(AMD.rules, shared, whole, Selection(), ("mutex",)) == Rule.MUTEX
    assert judge(AMD.rules, full, whole, Selection()) == Rule.MEMORY
    assert AMD.rules.order.index(Rule.MEMORY) + 1 == AMD.rules.order.index(Rule.CORES)
    assert not {Rule.EXCLUSIVE, Rule.CORES_EXHAUSTED} & set(AMD.rules.order)


def test_cards_are_registered_as_json_and_slices_name_the_product() -> None:
    register = json.dumps(
        [{"id": "amd-0", "count": 4, "devmem": 1000, "devcore": 304, "type": CARD.type}]
    )
    node = {"metadata": {"annotations": {"hami.io/node-amd-register": register}}}
    (card,) = AMD.node_devices(node)
    share = DeviceShare(
        uuid=card.uuid,
        vendor="AMD",
        memory_mib=20000,
        core_percent=76,
        type=AMD.rules.share_type(card),
    )

    assert (card.core_percent, card.vendor) == (304, "AMD")
    written = AMD.pod_annotations(
        PlacedPod(
            node=NodeName("n"),
            containers=[ContainerGrant(index=0, name="c", role="app", shares=(share,))],
            cards={card.uuid: card},
            selections={},
            now=datetime.now(UTC),
        )
    )
    assert written == {
        "hami.io/amd-devices-to-allocate": "amd-0,AMD Instinct MI300X,20000,76:;",
        "hami.io/amd-devices-allocated": "amd-0,AMD Instinct MI300X,20000,76:;",
    }
    assert AMD.node_devices({"metadata": {}}) == ()
    assert AMD.node_pair_scores(node) == {}
