"""Which MetaX cards take a slice, and the node's score, by protocol 1.8."""

from typing import Any

import pytest
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.placement.rules import Rule
from hamicommon.placement.vendor_policy import Chosen, NotChosen
from hamicommon.vendors.metax import choose_cards, node_score

from tests.unit.hamicommon.vendors.standing import ask, uuids

ONLINE, OFFLINE = {"class": "online"}, {"class": "offline"}


def card(name: str, *, zone: int = 0, qos: str = "", **fields: Any) -> GpuDevice:
    amounts = {"slots": 16, "memory_mib": 65536, "core_percent": 100}
    return GpuDevice(
        uuid=GpuUuid(name),
        index=0,
        vendor="Metax-SGPU",
        type="Metax-SGPU",
        info={"QosPolicy": qos, "Model": "C500", "LinkZone": zone},
        **(amounts | fields),
    )


def usage(name: str, *holdings: dict[str, str], cores: int = 0, **fields: Any) -> DeviceUsage:
    """A card with a slice per holding."""
    return DeviceUsage(
        device=card(name, **fields),
        used_slots=len(holdings),
        used_core_percent=cores,
        holdings=tuple(held for held in holdings if held),
    )


def request(count: int = 1, *, core: int = 30, memory: int = 4096) -> DeviceRequest:
    return DeviceRequest(vendor="Metax-SGPU", count=count, memory_mib=memory, core_percent=core)


def selection(pod_class: str = "", qos: str = "best-effort", topology: str = "false") -> Selection:
    qos = "" if pod_class == "online" else qos
    return Selection(traits={"class": pod_class, "qos": qos, "topology": topology})


@pytest.mark.parametrize(
    ("wanted", "pod", "held", "reason"),
    [
        (request(), selection(), usage("a", healthy=False), "CardUnhealthy"),
        (request(), selection(), usage("a", ONLINE), "CardAppClassMismatch"),
        (request(), selection(), usage("a", OFFLINE), "CardAppClassMismatch"),
        (request(), selection("online"), usage("a", {}), "CardAppClassMismatch"),
        (request(), selection("offline"), usage("a", ONLINE, OFFLINE), "CardAppClassMismatch"),
        (request(), selection(), usage("a", {"qos": "fixed-share"}), "CardQosPolicyMismatch"),
        (
            request(),
            selection(),
            usage("a", {"qos": "fixed-share"}, qos="best-effort"),
            "CardQosPolicyMismatch",
        ),
        (request(), selection(), usage("a", {}, cores=80), "CardInsufficientCore"),
        (request(core=100), selection(), usage("a", {}), "ExclusiveDeviceAllocateConflict"),
        (request(core=0), selection(), usage("a", {}, cores=100), "CardComputeUnitsExhausted"),
    ],
    ids=[
        "unhealthy",
        "online there, none asked",
        "offline there, none asked",
        "no class there, online asked",
        "an online pod there, offline asked",
        "another policy is held",
        "what is held counts before what is reported",
        "too few cores",
        "a whole card in use",
        "no core left",
    ],
)
def test_a_card_is_refused_by_the_first_rule_that_fails(wanted, pod, held, reason) -> None:
    answer = choose_cards(ask(wanted, [held], selection=pod))

    assert answer == NotChosen(reasons={reason: 1})


@pytest.mark.parametrize(
    ("wanted", "pod", "held"),
    [
        (request(), selection(), usage("a", qos="fixed-share")),
        (request(), selection(), usage("a", {"qos": "best-effort"}, qos="fixed-share")),
        (request(), selection(), usage("a", {})),
        (request(), selection(), usage("a", {}, qos="fixed-share")),
        (request(), selection("online"), usage("a", ONLINE, OFFLINE)),
        (request(), selection("online"), usage("a", OFFLINE, cores=100)),
        (request(), selection("offline"), usage("a", OFFLINE)),
    ],
    ids=[
        "nobody uses it, whatever it reports",
        "the policy held is the same",
        "its slices have no policy",
        "its slices have no policy, whatever it reports",
        "online on both classes",
        "online needs no cores",
        "offline beside offline",
    ],
)
def test_a_card_that_passes_every_rule_is_taken(wanted, pod, held) -> None:
    answer = choose_cards(ask(wanted, [held], selection=pod))

    assert isinstance(answer, Chosen)
    assert uuids(answer.shares) == ["a"]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (Rule.UUID, "CardUuidMismatch"),
        (Rule.SLOTS, "CardTimeSlicingExhausted"),
        (Rule.MUTEX, "ExclusiveDeviceAllocateConflict"),
        (Rule.MEMORY, "CardInsufficientMemory"),
    ],
)
def test_the_standard_rules_come_between_policy_and_cores(rule, reason) -> None:
    full = usage("a", {}, cores=100)
    other = usage("b", {"qos": "fixed-share"})

    answer = choose_cards(ask(request(), [full, other], rules=[rule, rule], selection=selection()))

    assert answer == NotChosen(reasons={reason: 1, "CardQosPolicyMismatch": 1})


def test_too_few_cards_are_counted_as_partly_found() -> None:
    cards = [usage("a"), usage("b"), usage("c", healthy=False)]

    answer = choose_cards(ask(request(3), cards, selection=selection()))

    assert answer == NotChosen(reasons={"CardUnhealthy": 1, "AllocatedCardsInsufficientRequest": 2})


@pytest.mark.parametrize(
    ("pod", "core", "taken", "detail"),
    [
        (selection(), 30, 30, {"qos": "best-effort"}),
        (selection(), 100, 100, {}),
        (selection("online"), 30, 0, {"class": "online"}),
        (selection("offline"), 30, 30, {"class": "offline", "qos": "best-effort"}),
    ],
    ids=["no class", "a whole card has no policy", "online has no cores", "offline"],
)
def test_a_slice_remembers_the_class_and_the_policy_of_its_pod(pod, core, taken, detail) -> None:
    answer = choose_cards(ask(request(core=core), [usage("a")], selection=pod))

    assert isinstance(answer, Chosen)
    (share,) = answer.shares
    assert (share.memory_mib, share.core_percent, share.detail) == (4096, taken, detail)


def test_memory_by_percentage_is_of_the_card() -> None:
    half = DeviceRequest(vendor="Metax-SGPU", count=1, memory_percent=50, core_percent=30)

    answer = choose_cards(ask(half, [usage("a")], selection=selection()))

    assert isinstance(answer, Chosen)
    assert answer.shares[0].memory_mib == 32768


@pytest.mark.parametrize(
    ("zones", "count", "expected"),
    [
        ({"a": 1, "b": 2, "c": 1, "d": 2, "e": 1}, 2, ["b", "d"]),
        ({"a": 1, "b": 2, "c": 1, "d": 2, "e": 1}, 3, ["a", "c", "e"]),
        ({"a": 1, "b": 2, "c": 1, "d": 2, "e": 1}, 4, ["b", "d", "a", "c"]),
        ({"a": 0, "b": 1, "c": 1, "d": 2}, 3, ["d", "b", "c"]),
        ({"a": 0, "b": 0, "c": 1, "d": 0}, 2, ["c", "a"]),
        ({"a": 0, "b": 0, "c": 0}, 2, ["a", "b"]),
        ({"a": 1, "b": 2, "c": 3}, 1, ["a"]),
    ],
    ids=[
        "smallest zone that is enough",
        "only one is enough",
        "spill over, small zones first",
        "zones before cards of none",
        "then cards of no zone",
        "no zones",
        "equal zones: the first",
    ],
)
def test_whole_cards_are_taken_from_one_link_zone(zones, count, expected) -> None:
    cards = [usage(name, zone=zone) for name, zone in zones.items()]

    answer = choose_cards(ask(request(count, core=100), cards, selection=selection()))

    assert isinstance(answer, Chosen)
    assert uuids(answer.shares) == expected


def test_slices_of_cards_and_offline_pods_take_the_first_cards() -> None:
    cards = [usage("a", zone=1), usage("b", zone=2), usage("c", zone=2)]

    for pod, core in ((selection(), 30), (selection("offline"), 100)):
        answer = choose_cards(ask(request(2, core=core), cards, selection=pod))
        assert isinstance(answer, Chosen)
        assert uuids(answer.shares) == ["a", "b"]


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        ([usage("a", OFFLINE), usage("b", ONLINE, ONLINE)], "b"),
        ([usage("a", ONLINE, ONLINE), usage("b", ONLINE, OFFLINE)], "b"),
        ([usage("a", ONLINE, OFFLINE, OFFLINE), usage("b", ONLINE, OFFLINE)], "b"),
        ([usage("a", ONLINE), usage("b")], "b"),
        ([usage("a"), usage("b")], "a"),
    ],
    ids=["only offline is last", "fewer online", "then fewer offline", "idle first", "the first"],
)
def test_an_online_pod_goes_where_few_tasks_are(cards, expected) -> None:
    answer = choose_cards(ask(request(), cards, selection=selection("online")))

    assert isinstance(answer, Chosen)
    assert uuids(answer.shares) == [expected]


def shares(*names: str, core: int = 100) -> list[DeviceShare]:
    return [
        DeviceShare(uuid=GpuUuid(x), vendor="Metax-SGPU", memory_mib=1, core_percent=core)
        for x in names
    ]


ZONE = [usage(name, zone=1) for name in "abcd"]
TOPOLOGY = selection(topology="true")


@pytest.mark.parametrize(
    ("before", "containers", "pod", "expected"),
    [
        (ZONE, [shares("a", "b")], TOPOLOGY, 600000.0),
        (ZONE, [shares("a"), shares("b")], TOPOLOGY, 600000.0),
        (ZONE, [shares("a", "b", core=30)], TOPOLOGY, 0.0),
        (ZONE, [shares("a", "b")], selection(), 0.0),
        ([usage("a", zone=1), usage("b", zone=2)], [shares("a", "b")], TOPOLOGY, 0.0),
        ([usage("a"), usage("b")], [shares("a", "b")], TOPOLOGY, 0.0),
        ([usage("a", OFFLINE, OFFLINE)], [shares("a", core=0)], selection("online"), -2000000.0),
        ([usage("a", ONLINE, OFFLINE)], [shares("a", core=0)], selection("online"), -220000.0),
        ([usage("a"), usage("b", OFFLINE)], [shares("a", core=0)], selection("online"), 0.0),
    ],
    ids=[
        "two of four in a zone",
        "of two containers",
        "no whole card",
        "not asked for",
        "different zones",
        "no zones",
        "only offline tasks",
        "online and offline tasks",
        "other cards do not count",
    ],
)
def test_the_nodes_score_counts_zones_or_tasks(before, containers, pod, expected) -> None:
    assert node_score(before, containers, pod, "binpack") == expected
    assert node_score(before, containers, pod, "spread") == -expected
