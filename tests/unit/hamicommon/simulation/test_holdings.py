"""Holdings of a card (protocol 4.4)."""

import json

import pytest
from hamicommon.domain.devices import DeviceUsage
from hamicommon.k8s.types import Json
from hamicommon.simulation.cluster import Cluster, read_cluster

from tests.unit.hamicommon.simulation.objects import every_vendor, node, placed_pod

CARD = "GPU-n-0"
Used = tuple[int, int, int]


def cluster_of(*pods: Json) -> Cluster:
    return read_cluster([node("n", {}, {})], pods, every_vendor())


def read_used(cluster: Cluster) -> Used:
    """(slots, MiB, percent) of the first card."""
    usage = cluster.view.cards(cluster.nodes[0])[0].usage
    return usage.used_slots, usage.used_memory_mib, usage.used_core_percent


@pytest.mark.parametrize(
    ("devices", "init", "expected"),
    [
        pytest.param(f"{CARD},NVIDIA,1000,10:;", 0, (1, 1000, 10), id="one slice"),
        pytest.param(f"{CARD},NVIDIA,1000,10:;;;", 0, (1, 1000, 10), id="grown by Allocate"),
        pytest.param(
            f"{CARD},NVIDIA,1000,10:;{CARD},NVIDIA,2000,5:;", 0, (2, 3000, 15), id="apps add up"
        ),
        pytest.param(
            f"{CARD},NVIDIA,1000,10:;{CARD},NVIDIA,700,5:;{CARD},NVIDIA,800,0:;",
            1,
            (2, 1500, 10),
            id="init is a maximum, per dimension",
        ),
        pytest.param(
            f"{CARD},NVIDIA,900,1:;{CARD},NVIDIA,700,5:;", 2, (1, 900, 5), id="inits take turns"
        ),
        pytest.param("GPU-other,NVIDIA,900,1:;", 0, (0, 0, 0), id="a card that is not there"),
        pytest.param(f"{CARD}[0-1],NVIDIA,900,1:;", 0, (1, 900, 1), id="a MIG template of old"),
    ],
)
def test_slices_are_collapsed_to_what_the_card_must_hold(
    devices: str, init: int, expected: Used
) -> None:
    assert read_used(cluster_of(placed_pod(devices, on="n", init=init))) == expected


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        pytest.param({"phase": "Running"}, True, id="running"),
        pytest.param({"phase": "Pending"}, True, id="pending"),
        pytest.param({"phase": "Succeeded"}, False, id="succeeded"),
        pytest.param({"phase": "Failed"}, False, id="failed"),
        pytest.param({"on": "elsewhere"}, False, id="on another node"),
        pytest.param({"on": ""}, False, id="never assigned"),
    ],
)
def test_only_live_pods_of_the_node_hold_something(pod: Json, counts: bool) -> None:
    given = {"on": "n"} | pod
    held = read_used(cluster_of(placed_pod(f"{CARD},NVIDIA,1000,10:;", **given)))
    assert held == ((1, 1000, 10) if counts else (0, 0, 0))


def test_a_terminating_pod_holds_its_cards_until_it_is_gone() -> None:
    pod = placed_pod(f"{CARD},NVIDIA,1000,10:;", on="n")
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert read_used(cluster_of(pod)) == (1, 1000, 10)


def test_a_pod_that_cannot_be_read_is_named_and_not_counted() -> None:
    cluster = cluster_of(placed_pod(f"{CARD},NVIDIA,1000:;", on="n"))
    assert read_used(cluster) == (0, 0, 0)
    [problem] = cluster.problems
    assert problem.startswith("pod team/old is not counted: pod annotation format error")


def test_a_node_whose_annotation_is_broken_is_named_and_has_no_card() -> None:
    broken = node("n", {})
    broken["metadata"]["annotations"]["hami.io/node-nvidia-register"] = "[{]"
    cluster = read_cluster([broken], [], every_vendor())
    assert not cluster.view.cards(cluster.nodes[0])
    [problem] = cluster.problems
    assert problem.startswith("node n: its NVIDIA cards are left out:")


def test_a_node_whose_plugin_is_away_has_no_card() -> None:
    cluster = read_cluster([node("n", {}, allocatable=0)], [], every_vendor())
    assert not cluster.view.cards(cluster.nodes[0])


def test_cordoned_cards_are_closed() -> None:
    given = node("n", {}, {}, annotations={"hami.io/device-cordon": f" {CARD} ,"})
    cards = read_cluster([given], [], every_vendor()).view.cards(given["metadata"]["name"])
    assert [card.usage.cordoned for card in cards] == [True, False]


MIG_CARD = {"mode": "mig", "count": 7, "devmem": 40960}


def place(uuid: str = CARD, *, device: int = 0) -> Json:
    return {
        "containerIndex": 0,
        "deviceIndex": device,
        "gpuUUID": uuid,
        "profile": "3g.20gb",
        "placement": {"start": 4, "size": 4},
    }


def mig_pod(devices: str, *places: Json) -> Json:
    pod = placed_pod(devices, on="n")
    pod["metadata"]["annotations"]["hami.io/vgpu-mig-allocations"] = json.dumps(places)
    return pod


def mig_cards(*pods: Json, first: Json) -> list[DeviceUsage]:
    cluster = read_cluster([node("n", first, MIG_CARD)], pods, every_vendor())
    return [state.usage for state in cluster.view.cards(cluster.nodes[0])]


def test_placements_of_mig_slices_are_held() -> None:
    pod = mig_pod(f"{CARD},NVIDIA,20480,42:;", place())
    card, other = mig_cards(pod, first=MIG_CARD)
    assert (card.device.healthy, other.device.healthy) == (True, True)
    assert card.holdings == ({"profile": "3g.20gb", "placement": {"start": 4, "size": 4}},)
    assert (card.used_slots, card.used_memory_mib, card.used_core_percent) == (1, 20480, 42)


@pytest.mark.parametrize(
    ("pod", "first", "healthy"),
    [
        pytest.param(
            placed_pod(f"{CARD},NVIDIA,20480,42:;", on="n"),
            MIG_CARD,
            [False, True],
            id="a slice of a MIG card without its placement",
        ),
        pytest.param(
            placed_pod(f"{CARD}[0-1],NVIDIA,20480,42:;", on="n"),
            MIG_CARD,
            [False, True],
            id="a slice by a template of HAMi 2.9",
        ),
        pytest.param(
            mig_pod(f"{CARD},NVIDIA,20480,42:;", place()),
            {},
            [False, True],
            id="a placement on a card that is not cut",
        ),
        pytest.param(
            mig_pod(f"{CARD},NVIDIA,20480,42:;", place(), place("GPU-gone", device=1)),
            MIG_CARD,
            [False, False],
            id="a placement on a card that is not there",
        ),
    ],
)
def test_a_mig_card_of_which_the_use_is_unknown_is_closed(
    pod: Json, first: Json, healthy: list[bool]
) -> None:
    assert [card.device.healthy for card in mig_cards(pod, first=first)] == healthy


def test_a_malformed_reservation_is_named() -> None:
    cluster = cluster_of(mig_pod(f"{CARD},NVIDIA,20480,42:;", {"gpuUUID": CARD}))
    [problem] = cluster.problems
    assert "MIG reservation 0" in problem


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        pytest.param([], (2, 1500, 10), id="nothing is reported"),
        pytest.param([0], (2, 1500, 5), id="through"),
        pytest.param([0, 0], (2, 1500, 5), id="all through"),
        pytest.param([0, 1], (2, 1500, 10), id="one failed"),
        pytest.param([None], (2, 1500, 10), id="still running"),
    ],
)
def test_init_containers_that_are_through_hold_nothing(
    codes: list[int | None], expected: Used
) -> None:
    devices = f"{CARD},NVIDIA,1000,10:;{CARD},NVIDIA,700,5:;{CARD},NVIDIA,800,0:;"
    pod = placed_pod(devices, on="n", init=1)
    pod["status"]["initContainerStatuses"] = [
        {"state": {"running": {}} if code is None else {"terminated": {"exitCode": code}}}
        for code in codes
    ]
    assert read_used(cluster_of(pod)) == expected
