"""Policies of protocol 2.3 and 4.6, from the pod's annotations to the cards it gets."""

from __future__ import annotations

from typing import Any

import pytest
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.allocations import Placement
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import PodRequest, Policy
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide, place
from hamicommon.placement.unschedulable import Refusal
from hamicommon.placement.vendor_policy import PairScores
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from tests.unit.hamicommon.placement.clusters import card, two_by_two, view_of

VENDORS = Vendors.from_config(DeviceConfig())
NODE, GPU = "hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"
WEIGHTS = "hami.io/device-scoring-weights"


def asking(
    annotations: dict[str, str] | None = None,
    *,
    cards: int = 1,
    memory: int = 1000,
    cores: int = 20,
    defaults: Policy | None = None,
) -> PodRequest:
    """A pod with one container, read from its object."""
    limits = {
        "nvidia.com/gpu": str(cards),
        "nvidia.com/gpumem": str(memory),
        "nvidia.com/gpucores": str(cores),
    }
    pod: dict[str, Any] = {
        "metadata": {"name": "p", "uid": "u", "annotations": annotations or {}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    }
    return pod_request(pod, VENDORS, defaults or Policy())


def place_on(request: PodRequest, view: ClusterView) -> tuple[str, list[str]]:
    """The node and the cards."""
    found = place(request, view)
    assert isinstance(found, Placement), found
    return found.node, [share.uuid for share in found.containers[0].shares]


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({NODE: "binpack", GPU: "binpack"}, ("node2", "device4"), id="bin-bin"),
        pytest.param({NODE: "binpack", GPU: "spread"}, ("node2", "device3"), id="bin-spread"),
        pytest.param({NODE: "spread", GPU: "binpack"}, ("node1", "device1"), id="spread-bin"),
        pytest.param({NODE: "spread", GPU: "spread"}, ("node1", "device2"), id="spread-spread"),
        pytest.param({}, ("node2", "device3"), id="HAMi's defaults"),
        pytest.param({NODE: " spread "}, ("node1", "device2"), id="blanks around it"),
        pytest.param({NODE: "best", GPU: "best"}, ("node2", "device3"), id="unknown names"),
        pytest.param({GPU: "best,binpack"}, ("node2", "device4"), id="unknown name in a list"),
        pytest.param({NODE: "", GPU: " , "}, ("node2", "device3"), id="blank values"),
    ],
)
def test_a_pods_annotations_choose_node_and_card(
    annotations: dict[str, str], expected: tuple[str, str]
) -> None:
    node, [uuid] = place_on(asking(annotations), two_by_two())

    assert (node, uuid) == expected


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({}, ("node1", "device1"), id="the installation's"),
        pytest.param({NODE: "binpack"}, ("node2", "device4"), id="another node policy"),
        pytest.param({GPU: "spread"}, ("node1", "device2"), id="another card policy"),
    ],
)
def test_a_pods_annotations_override_the_installations_policies(
    annotations: dict[str, str], expected: tuple[str, str]
) -> None:
    defaults = Policy(node="spread", gpu=("binpack",))
    node, [uuid] = place_on(asking(annotations, defaults=defaults), two_by_two())

    assert (node, uuid) == expected


def make_used_card(uuid: str, index: int, numa: int, slots: int) -> DeviceUsage:
    return card(uuid, index=index, numa=numa, used=(slots, slots * 500, 0))


MIXED = (
    make_used_card("a", 0, 0, 0),
    make_used_card("b", 1, 0, 2),
    make_used_card("c", 2, 1, 1),
    make_used_card("d", 3, 1, 2),
)
"""Two cards on either NUMA node, in use by 0, 2, 1 and 2 slices."""


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        pytest.param("numa", "d c b a", id="the higher NUMA node first"),
        pytest.param("binpack", "d b c a", id="fuller first, then the higher NUMA node"),
        pytest.param("spread", "a c d b", id="emptier first, then the higher NUMA node"),
        pytest.param("binpack,numa", "d b c a", id="binpack then numa"),
        pytest.param("numa,binpack", "d c b a", id="numa then binpack"),
        pytest.param("numa,spread", "c d a b", id="numa then spread"),
        pytest.param("spread,numa", "a c d b", id="spread then numa"),
        pytest.param("spread,binpack", "a c d b", id="the first of two that contradict"),
        pytest.param("mutex,odd", "a", id="mutex in a list is a filter alone"),
        pytest.param("mutex", "a", id="mutex takes idle cards"),
    ],
)
def test_chained_policies_take_cards_in_the_order_written(policy: str, expected: str) -> None:
    wanted = expected.split()
    view = view_of({"n": MIXED})

    found = place_on(asking({GPU: policy}, cards=len(wanted), memory=1, cores=0), view)
    assert found == ("n", wanted)


def test_mutex_refuses_what_is_in_use_wherever_it_stands_in_the_list() -> None:
    found = place(asking({GPU: "binpack, mutex"}, cards=2, memory=1), view_of({"n": MIXED}))

    assert isinstance(found, Refusal)
    assert found.reasons == {
        "n": "1/4 AllocatedCardsInsufficientRequest, 3/4 ExclusiveDeviceAllocateConflict"
    }


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        pytest.param("slot=1,core=1,memory=1", "a", id="HAMi's default"),
        pytest.param(" memory = 9 , core=1,slot=1", "b", id="memory counts most"),
        pytest.param("slot=9,core=0,memory=0", "c", id="slots alone"),
        pytest.param("slot=0,core=1,memory=0", "a", id="cores alone"),
    ],
)
def test_weights_decide_which_card_is_the_fullest(weights: str, expected: str) -> None:
    view = view_of(
        {
            "n": [
                card("a", used=(1, 1000, 80)),
                card("b", index=1, used=(2, 5000, 10)),
                card("c", index=2, used=(6, 600, 6)),
            ]
        }
    )

    assert place_on(asking({GPU: "binpack", WEIGHTS: weights}), view) == ("n", [expected])


NVLINKS = [[0, 100, 100, 200], [100, 0, 200, 100], [100, 200, 0, 200], [200, 100, 200, 0]]
"""The matrix of protocol 5.6: four cards with one or two NVLinks between them."""


def make_scores(*uuids: str, matrix: list[list[int]]) -> PairScores:
    names = [GpuUuid(uuid) for uuid in uuids]
    return {a: dict(zip(names, row, strict=True)) for a, row in zip(names, matrix, strict=True)}


@pytest.mark.parametrize(
    ("busy", "count", "expected"),
    [
        pytest.param("", 4, "g3 g2 g1 g0", id="as many as fit are all taken"),
        pytest.param("", 2, "g3 g2", id="the first of equally linked pairs"),
        pytest.param("g2", 2, "g3 g0", id="the best pair of what fits"),
        pytest.param("g2 g3", 2, "g1 g0", id="what is left"),
        pytest.param("", 3, "g3 g2 g1", id="the best three"),
        pytest.param("", 1, "g1", id="one card that is linked least"),
        pytest.param("g1", 1, "g2", id="the first of those linked least"),
    ],
)
def test_topology_takes_what_nvlink_connects(busy: str, count: int, expected: str) -> None:
    names = ("g0", "g1", "g2", "g3")
    usages = [
        card(name, index=i, used=(1, 8000, 0) if name in busy.split() else (0, 0, 0))
        for i, name in enumerate(names)
    ]
    view = view_of({"n": usages}, {"n": make_scores(*names, matrix=NVLINKS)})

    found = place_on(asking({GPU: "topology-aware"}, cards=count, memory=1), view)
    assert found == ("n", expected.split())


def test_topology_looks_at_fitting_cards_alone_and_without_scores_at_the_order() -> None:
    view = view_of({"n": [card(f"g{i}", index=i) for i in range(4)]})

    assert place_on(asking({GPU: "topology-aware"}, cards=2), view) == ("n", ["g3", "g2"])
    assert place_on(asking({GPU: "topology-aware,binpack"}, cards=2), view) == ("n", ["g3", "g2"])


def test_cards_that_lower_each_others_score_are_compared_too() -> None:
    """Scores of zero and below are sums like others (protocol 1.1)."""
    matrix = [[0, -5, -1], [-5, 0, -9], [-1, -9, 0]]
    view = view_of(
        {"n": [card(f"g{i}", index=i) for i in range(3)]},
        {"n": make_scores("g0", "g1", "g2", matrix=matrix)},
    )

    assert place_on(asking({GPU: "topology-aware"}, cards=2), view) == ("n", ["g2", "g0"])


def test_a_node_is_scored_by_all_its_cards_before_the_pod() -> None:
    """10 x (slots + cores + memory), each as a share of the node's; 0 without a capacity."""
    view = view_of(
        {
            "half": [card("a", used=(5, 4000, 50)), card("b", index=1, used=(5, 4000, 50))],
            "quarter": [card("c", used=(5, 4000, 50)), card("d", index=1)],
            "odd": [card("e", core_percent=0, used=(5, 4000, 0))],
        }
    )

    assert dict(decide(asking(cores=0), view).scores) == {"half": 15, "quarter": 7.5, "odd": 0}
