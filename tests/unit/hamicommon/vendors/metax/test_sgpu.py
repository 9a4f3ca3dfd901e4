"""MetaX slices, by protocol 1.8: requests, nodes, admission, annotations."""

import json

import pytest
from hamicommon.device_config import MetaxConfig
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.metax import MetaxSgpu

from tests.unit.hamicommon.vendors.standing import (
    NOW_NS,
    container,
    make_placed_pod,
    node,
    pod,
    share,
)

SGPU = MetaxSgpu(MetaxConfig())
COUNT, MEM, CORE = "metax-tech.com/sgpu", "metax-tech.com/vmemory", "metax-tech.com/vcore"
CLASS, QOS = "metax-tech.com/sgpu-app-class", "metax-tech.com/sgpu-qos-policy"
TOPOLOGY = "metax-tech.com/sgpu-topology-aware"
REGISTER = "metax-tech.com/node-gpu-devices"
ENTRY = {
    "uuid": "SG-0",
    "bdf": "00",
    "model": "C500",
    "totalDevCount": 16,
    "totalCompute": 100,
    "totalVRam": 65536,
    "availableVRam": 1,
    "numa": 1,
    "healthy": True,
    "qosPolicy": "best-effort",
    "linkZone": 2,
}


def registering(*entries: object):
    return node(annotations={REGISTER: json.dumps(entries)})


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({COUNT: 1}, (1, 0, 100, 100)),
        ({COUNT: 1, MEM: 4, CORE: 60}, (1, 4096, None, 60)),
        ({COUNT: 1, MEM: "2048Mi"}, (1, 2048, None, 100)),
        ({COUNT: 1, MEM: "8Gi"}, (1, 8192, None, 100)),
        ({COUNT: 1, MEM: "1.5Gi"}, (1, 1536, None, 100)),
        ({COUNT: 1, MEM: "2M"}, (1, 1, None, 100)),
        ({COUNT: 1, MEM: 0}, (1, 0, 100, 100)),
        ({COUNT: 0}, None),
        ({MEM: 4}, None),
    ],
    ids=str,
)
def test_a_bare_amount_of_memory_is_gib_and_one_with_a_unit_bytes(limits, expected) -> None:
    found = SGPU.parse_request(container(limits))

    assert expected == (
        found and (found.count, found.memory_mib, found.memory_percent, found.core_percent)
    )


def test_only_limits_are_read() -> None:
    assert SGPU.parse_request(container(None, {COUNT: 1})) is None
    found = SGPU.parse_request(container({COUNT: 1}, {MEM: 4, CORE: 10}))
    assert found is not None
    assert (found.memory_mib, found.core_percent) == (0, 100)


@pytest.mark.parametrize("amount", ["1000", "500m", "1Ki", "-4", "1Pi", "x"])
def test_memory_that_hami_would_drop_is_refused(amount) -> None:
    with pytest.raises(InvalidRequest, match=f"container 'c': {MEM} is {amount}"):
        SGPU.parse_request(container({COUNT: 1, MEM: amount}))


@pytest.mark.parametrize(
    ("count", "annotations", "wrong"),
    [
        (1, {CLASS: "other"}, rf"{CLASS} must be set one of \[online, offline\], not 'other'"),
        (1, {CLASS: ""}, rf"{CLASS} must be set one of \[online, offline\], not ''"),
        (1, {QOS: "best"}, rf"{QOS} must be set one of \[best-effort, fixed-share, burst-share\]"),
        (1, {CLASS: "offline", QOS: "best"}, f"{QOS} must be set one of"),
        (1, {TOPOLOGY: "yes"}, f"{TOPOLOGY} must be true or false, not 'yes'"),
    ],
    ids=str,
)
def test_contradictory_annotations_are_refused_at_admission_and_later(
    count, annotations, wrong
) -> None:
    asking = container({COUNT: count})

    with pytest.raises(InvalidRequest, match=wrong):
        SGPU.mutate(asking, pod(asking, annotations))
    with pytest.raises(InvalidRequest, match=wrong):
        SGPU.parse_request(asking, annotations)


@pytest.mark.parametrize("pod_class", ["online", "offline"])
def test_a_pod_of_a_class_is_admitted_with_one_card_only_which_the_scheduler_does_not_ask(
    pod_class,
) -> None:
    asking = container({COUNT: 2})

    with pytest.raises(
        InvalidRequest, match=f"app-class pod must request single device: {COUNT} is 2"
    ):
        SGPU.mutate(asking, pod(asking, {CLASS: pod_class}))
    assert SGPU.parse_request(asking, {CLASS: pod_class}) is not None


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, {QOS: "best-effort"}),
        ({QOS: "burst-share"}, {QOS: "burst-share"}),
        ({CLASS: "offline"}, {CLASS: "offline", QOS: "best-effort"}),
        ({CLASS: "online"}, {CLASS: "online"}),
        ({CLASS: "online", QOS: "junk"}, {CLASS: "online", QOS: "junk"}),
    ],
    ids=["none", "given", "offline", "online has none", "online's is not looked at"],
)
def test_admission_gives_pods_that_are_not_online_a_policy(annotations, expected) -> None:
    asking = container({COUNT: 1})
    whole = pod(asking, annotations)

    assert SGPU.mutate(asking, whole).wants
    assert SGPU.mutate(asking, whole).wants
    assert whole["metadata"]["annotations"] == expected


def test_admission_leaves_other_pods_alone() -> None:
    whole = pod(container(None, {COUNT: 1}), {CLASS: "junk"})

    assert not SGPU.mutate(whole["spec"]["containers"][0], whole).wants
    assert whole["metadata"]["annotations"] == {CLASS: "junk"}


@pytest.mark.parametrize(
    ("annotations", "aware", "traits"),
    [
        ({}, False, {"class": "", "qos": "", "topology": "false"}),
        ({}, True, {"class": "", "qos": "", "topology": "true"}),
        ({TOPOLOGY: "0"}, True, {"class": "", "qos": "", "topology": "false"}),
        ({TOPOLOGY: "true"}, False, {"class": "", "qos": "", "topology": "true"}),
        (
            {CLASS: "online", QOS: "x"},
            False,
            {"class": "online", "qos": "", "topology": "false"},
        ),
        (
            {CLASS: "offline", QOS: "fixed-share"},
            False,
            {"class": "offline", "qos": "fixed-share", "topology": "false"},
        ),
    ],
    ids=[
        "not admitted by us",
        "configured",
        "annotation off",
        "annotation on",
        "online",
        "offline",
    ],
)
def test_class_policy_and_topology_are_traits(annotations, aware, traits) -> None:
    vendor = MetaxSgpu(MetaxConfig(sgpu_topology_aware=aware))

    assert vendor.select(annotations).traits == traits


@pytest.mark.parametrize(
    ("annotations", "core", "detail"),
    [
        ({QOS: "fixed-share"}, 30, {"qos": "fixed-share"}),
        ({QOS: "fixed-share"}, 100, {}),
        ({CLASS: "online"}, 0, {"class": "online"}),
        ({CLASS: "offline", QOS: "fixed-share"}, 30, {"class": "offline", "qos": "fixed-share"}),
    ],
    ids=["policy", "a whole card has none", "online", "offline"],
)
def test_what_a_slice_remembers_is_read_back_from_a_placed_pod(annotations, core, detail) -> None:
    (card,) = SGPU.node_devices(registering(ENTRY))

    assert SGPU.detail_of(share(card, core_percent=core), annotations) == detail


def test_a_node_registers_its_cards_as_json() -> None:
    first, second = SGPU.node_devices(registering(ENTRY, {"uuid": "SG-1"}))

    assert (first.uuid, first.index, first.slots, first.memory_mib, first.core_percent) == (
        ("SG-0", 0, 16, 65536, 100)
    )
    assert (first.numa, first.healthy, first.type) == (1, True, "Metax-SGPU")
    assert first.info == {"QosPolicy": "best-effort", "Model": "C500", "LinkZone": 2}
    assert (second.index, second.healthy, second.slots) == (1, False, 0)
    assert SGPU.node_devices(node()) == ()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "node-gpu-devices is not JSON"),
        ("{}", "is not a JSON list of objects"),
        ("[1]", "is not a JSON list of objects"),
        ("[{}]", r"node-gpu-devices\[0\] has no uuid"),
        ('[{"uuid": "a", "totalVRam": "1"}]', r"totalVRam of .*\[0\] is '1'"),
        ('[{"uuid": "a", "healthy": 1}]', r"healthy of .*\[0\] is 1"),
    ],
)
def test_malformed_cards_are_named_and_their_plugin_is_not_alive(text, wrong) -> None:
    malformed = node(annotations={REGISTER: text})

    with pytest.raises(InvalidRequest, match=wrong):
        SGPU.node_devices(malformed)
    assert not SGPU.plugin_alive(malformed)


def test_the_plugin_is_alive_while_the_node_registers_a_card() -> None:
    assert SGPU.plugin_alive(registering(ENTRY))
    assert not SGPU.plugin_alive(registering())
    assert not SGPU.plugin_alive(node())


def test_a_placed_pod_carries_its_slices_in_three_annotations() -> None:
    cards = SGPU.node_devices(registering(ENTRY, ENTRY | {"uuid": "SG-1"}))
    cut = share(cards[1], memory_mib=4096, core_percent=60)
    online = share(cards[0], memory_mib=4096, core_percent=0)

    assert SGPU.pod_annotations(make_placed_pod(cards, (cut,), (), (online,))) == {
        "hami.io/metax-sgpu-devices-to-allocate": (
            "SG-1,Metax-SGPU,4096,60:;;SG-0,Metax-SGPU,4096,0:;"
        ),
        "hami.io/metax-sgpu-devices-allocated": (
            "SG-1,Metax-SGPU,4096,60:;;SG-0,Metax-SGPU,4096,0:;"
        ),
        "metax-tech.com/gpu-devices-allocated": (
            '[[{"uuid":"SG-1","compute":60,"vRam":4096}],[],[{"uuid":"SG-0","vRam":4096}]]'
        ),
        "metax-tech.com/predicate-time": NOW_NS,
    }
    assert SGPU.pod_annotations(make_placed_pod(cards, ())) == {}
