"""MetaX whole cards, by protocol 1.7."""

import pytest
from hamicommon.device_config import MetaxConfig
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.requests import Selection
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.metax import MetaxGpu

from tests.unit.hamicommon.vendors.standing import container, node, share

METAX = MetaxGpu(MetaxConfig())
COUNT = "metax-tech.com/gpu"
LOSSES = "metax-tech.com/gpu.topology.losses"
SCORES = "metax-tech.com/gpu.topology.scores"


def test_a_request_is_for_whole_cards() -> None:
    found = METAX.parse_request(container(None, {COUNT: 2}))

    assert found is not None
    assert (found.count, found.memory_mib, found.memory_percent, found.core_percent) == (
        (2, 0, 100, 100)
    )
    assert METAX.parse_request(container({COUNT: 0})) is None
    with pytest.raises(
        InvalidRequest, match=f"container 'c': {COUNT} is 0.5: expected a whole number"
    ):
        METAX.parse_request(container({COUNT: "0.5"}))


def test_a_node_has_as_many_cards_as_the_kubelet_lists() -> None:
    cards = METAX.node_devices(node({COUNT: "2"}))

    assert [card.uuid for card in cards] == ["n-metax-0", "n-metax-1"]
    assert {(c.slots, c.memory_mib, c.core_percent, c.type) for c in cards} == {
        (1, 65536, 100, "Metax-GPU")
    }


@pytest.mark.parametrize(
    ("annotations", "policy", "expected"),
    [
        pytest.param({LOSSES: '{"1": 100, "2": 50}'}, "binpack", 1950.0, id="loss of two cards"),
        pytest.param({LOSSES: '{"1": 100}'}, "binpack", 2000.0, id="number not given"),
        pytest.param({LOSSES: "junk"}, "binpack", 2000.0, id="no JSON"),
        pytest.param({LOSSES: '["1"]'}, "binpack", 2000.0, id="no object"),
        pytest.param({LOSSES: '{"2": "x"}'}, "binpack", 2000.0, id="no number"),
        pytest.param({LOSSES: '{"2": 50}'}, "spread", 0.0, id="losses are not for spread"),
        pytest.param({SCORES: '{"2": 300}'}, "spread", 1700.0, id="score of two cards"),
        pytest.param({SCORES: '{"2": 300}'}, "binpack", 0.0, id="scores are not for binpack"),
        pytest.param({}, "binpack", 0.0, id="nothing given"),
    ],
)
def test_the_nodes_score_is_2000_less_its_topology_value(annotations, policy, expected) -> None:
    cards = METAX.node_devices(node({COUNT: "3"}, annotations))
    before = [DeviceUsage(device=card) for card in cards]
    containers = [[share(cards[0])], [], [share(cards[2])]]

    assert METAX.rules.scorer is not None
    assert METAX.rules.scorer(before, containers, Selection(), policy) == expected


def test_a_pod_stays_on_one_card() -> None:
    assert METAX.rules.same_card
