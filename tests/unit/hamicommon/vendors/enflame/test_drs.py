"""Enflame slices by protocol 1.12."""

import json

import pytest
from hamicommon.device_config import EnflameConfig
from hamicommon.domain.devices import DeviceUsage
from hamicommon.errors import InvalidRequest
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import Chosen, Need, NotChosen
from hamicommon.vendors.enflame import EnflameDrs, choose_card, need

from tests.unit.hamicommon.vendors.standing import (
    NOW_NS,
    ask,
    container,
    make_placed_pod,
    node,
    pod,
)

DRS = EnflameDrs(EnflameConfig())
SIZE, MEM, CORE = "enflame.com/drs-gcu", "enflame.com/gcu-memory", "enflame.com/gcu-core"
CAPACITY = {
    "devices": [
        {"index": "0", "minor": "5", "capacity": 6},
        {"index": "1", "minor": "6", "capacity": "6"},
    ],
    "profiles": {"6g.48gb": "3", "1g.8gb": "0", "3g.24gb": "2", "2g.16gb": "1"},
}


def registering(capacity: object):
    return node(annotations={"enflame.com/gcu-drs-capacity": json.dumps(capacity)})


CARDS = DRS.node_devices(registering(CAPACITY))
IDLE = [DeviceUsage(device=card) for card in reversed(CARDS)]


def parse(limits):
    found = DRS.parse_request(container(limits))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("limits", "traits", "core"),
    [
        ({SIZE: 3}, {"slice": "3"}, 0),
        ({SIZE: 1, MEM: 99, CORE: 99}, {"slice": "1"}, 0),
        ({MEM: 20480, CORE: 40}, {"memory": "20480"}, 40),
        ({MEM: 20}, {"memory": "20"}, 0),
        ({CORE: 40}, {"memory": "0"}, 40),
    ],
    ids=["size", "size before amounts", "memory and cores", "memory", "cores"],
)
def test_a_request_is_one_slice_by_size_or_by_amounts(limits, traits, core) -> None:
    found = parse(limits)

    assert (found.count, dict(found.traits), found.core_percent) == (1, traits, core)
    assert DRS.parse_request(container({})) is None


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        ({SIZE: 0}, f"container 'c': {SIZE} must be greater than 0, not 0"),
        ({SIZE: "1.5"}, f"{SIZE} is 1.5: expected a whole number above 0"),
        ({MEM: -1}, f"{MEM} must be greater than 0, not -1"),
        ({CORE: "130"}, rf"{CORE} must be in range \(0,100\], not 130"),
        ({MEM: 1, CORE: 0}, rf"{CORE} must be in range \(0,100\], not 0"),
        ({MEM: "16Gi"}, f"{MEM} is 16Gi: expected a whole number above 0"),
    ],
    ids=str,
)
def test_amounts_that_can_never_be_given_are_refused_at_admission_too(limits, wrong) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        DRS.parse_request(container(limits))
    with pytest.raises(InvalidRequest, match=wrong):
        DRS.mutate(container(limits), pod({}))


@pytest.mark.parametrize(
    ("limits", "requests", "expected"),
    [
        ({SIZE: 2}, None, {SIZE: 2}),
        (None, {SIZE: "2"}, {SIZE: "2"}),
        ({MEM: 20}, {CORE: 40}, {MEM: 20, CORE: 40}),
    ],
    ids=["limits", "requests", "each from where it is"],
)
def test_admission_mirrors_the_amounts_in_limits_and_requests(limits, requests, expected) -> None:
    asking = container(limits, requests)

    assert DRS.mutate(asking, pod(asking)).wants
    assert asking["resources"] == {"limits": expected, "requests": expected}
    assert not DRS.mutate(container({}), pod({})).wants


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (EnflameConfig(), (SIZE, MEM, CORE)),
        (EnflameConfig(resource_name_vgcu="enflame.com/vgcu"), ("enflame.com/vgcu", MEM, CORE)),
        (
            EnflameConfig(resource_name_vgcu="enflame.com/vgcu", resource_name_drs_gcu="a.b/drs"),
            ("a.b/drs", MEM, CORE),
        ),
    ],
    ids=["nothing configured", "the older name", "the newer name first"],
)
def test_names_have_defaults(config, names) -> None:
    found = EnflameDrs(config).resources

    assert (found.count, found.memory, found.core) == names
    assert found.alone == names[1:]


def test_a_node_registers_its_cards_and_profiles() -> None:
    first, second = CARDS

    assert [card.uuid for card in CARDS] == ["n-enflame-drs-0", "n-enflame-drs-1"]
    assert (second.index, second.slots, second.memory_mib, second.core_percent, second.type) == (
        (1, 6, 49152, 100, "Enflame")
    )
    assert first.info == {
        "index": "0",
        "minor": "5",
        "profiles": CAPACITY["profiles"],
        "maxSlice": 6,
    }
    assert DRS.node_devices(node()) == ()
    assert DRS.plugin_alive(registering(CAPACITY))
    assert not DRS.plugin_alive(node())


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"profiles": {}}, "expected at least one profile"),
        ({"profiles": {"big": "1"}}, "profile 'big' is not written like 2g.12gb"),
        ({"devices": [{"index": "0", "capacity": 0}]}, "capacity of device 0 is '0'"),
        (
            {"devices": [{"index": "x", "capacity": 6}]},
            "index 'x' of a device is not a whole number",
        ),
        ({"devices": {}}, "devices is not a list of objects"),
    ],
    ids=["no profile", "malformed profile", "capacity 0", "index", "devices"],
)
def test_a_malformed_capacity_is_named(changed, wrong) -> None:
    with pytest.raises(InvalidRequest, match=wrong):
        DRS.node_devices(registering(CAPACITY | changed))


@pytest.mark.parametrize("text", ["{", "[]", "1"])
def test_a_capacity_that_is_no_object_is_named(text) -> None:
    with pytest.raises(InvalidRequest, match="gcu-drs-capacity is not"):
        DRS.node_devices(node(annotations={"enflame.com/gcu-drs-capacity": text}))


@pytest.mark.parametrize(
    ("limits", "profile"),
    [
        ({SIZE: 2}, ("2g.16gb", "1", 2, 16384, 34)),
        ({SIZE: 3}, ("3g.24gb", "2", 3, 24576, 50)),
        ({MEM: 20480, CORE: 40}, ("3g.24gb", "2", 3, 24576, 50)),
        ({MEM: 16}, ("2g.16gb", "1", 2, 16384, 34)),
        ({MEM: 17}, ("3g.24gb", "2", 3, 24576, 50)),
        ({MEM: 97}, ("1g.8gb", "0", 1, 8192, 17)),
        ({MEM: 8193}, ("2g.16gb", "1", 2, 16384, 34)),
        ({CORE: 17}, ("1g.8gb", "0", 1, 8192, 17)),
        ({CORE: 100}, ("6g.48gb", "3", 6, 49152, 100)),
    ],
    ids=[
        "size: cores are rounded up",
        "size of half a card",
        "MiB and cores",
        "GiB that fit exactly",
        "one GiB more",
        "more than twice the largest is MiB",
        "MiB are rounded up",
        "cores that fit exactly",
        "all cores",
    ],
)
def test_a_slice_gets_the_smallest_profile_that_is_enough(limits, profile) -> None:
    name, id_, size, memory, core = profile

    answer = choose_card(ask(parse(limits), IDLE))

    assert isinstance(answer, Chosen)
    (share,) = answer.shares
    assert (share.uuid, share.slots, share.memory_mib, share.core_percent) == (
        ("n-enflame-drs-1", size, memory, core)
    )
    assert share.detail == {"profile": name, "profileID": id_}
    assert need(parse(limits), DRS.select({}), CARDS[0]) == Need(memory, core)


@pytest.mark.parametrize("limits", [{SIZE: 4}, {MEM: 49}, {MEM: 60000}], ids=str)
def test_without_a_profile_the_mode_does_not_fit(limits) -> None:
    assert choose_card(ask(parse(limits), IDLE)) == NotChosen(reasons={"ModeNotFit": 1})


def test_cards_that_fail_a_rule_are_passed_over_and_counted() -> None:
    request = parse({SIZE: 2})

    answer = choose_card(ask(request, IDLE, rules=[Rule.MEMORY, Rule.FITS]))
    refused = choose_card(ask(request, IDLE, rules=[Rule.SLOTS, Rule.CORES]))

    assert isinstance(answer, Chosen)
    assert answer.shares[0].uuid == "n-enflame-drs-0"
    assert refused == NotChosen(reasons={"CardTimeSlicingExhausted": 1, "CardInsufficientCore": 1})


def test_a_placed_pod_shows_the_plugin_every_container_and_the_first_ones_card() -> None:
    first = choose_card(ask(parse({SIZE: 2}), IDLE[1:]))
    second = choose_card(ask(parse({SIZE: 1}), IDLE))
    assert isinstance(first, Chosen)
    assert isinstance(second, Chosen)

    assert DRS.pod_annotations(make_placed_pod(CARDS, (), first.shares, second.shares)) == {
        "hami.io/enflame-vgpu-devices-allocated": (
            ";n-enflame-drs-0,Enflame,16384,34:;n-enflame-drs-1,Enflame,8192,17:;"
        ),
        "enflame.com/gcu-assigned": "false",
        "enflame.com/gcu-assigned-time": NOW_NS,
        "enflame.com/gcu-assigned-index": "0",
        "enflame.com/gcu-assigned-id": "0",
        "enflame.com/gcu-assigned-minor": "5",
        "enflame.com/gcu-request-size": "2",
        "assigned-containers": (
            '{"c1":{"allocated":false,"request":2,"profileID":"1","profileName":"2g.16gb"},'
            '"c2":{"allocated":false,"request":1,"profileID":"0","profileName":"1g.8gb"}}'
        ),
    }
    assert DRS.pod_annotations(make_placed_pod(CARDS, ())) == {}


def test_cards_are_selected_by_uuid_and_no_node_is_locked() -> None:
    found = DRS.select({"enflame.com/use-gpuuuid": "a", "enflame.com/nouse-gpuuuid": "b"})

    assert (found.use_uuids, found.avoid_uuids) == (("a",), ("b",))
    assert DRS.keys.lock == ""
