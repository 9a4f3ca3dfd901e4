"""One plain sentence per refusal: the shortage, and a remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import PodRequest, Selection
from hamicommon.explain.record import QuotaShort
from hamicommon.explain.sentences import (
    describe_request,
    placed_sentence,
    quota_sentence,
    refusal_sentence,
    stock_of,
)
from hamicommon.placement.engine import decide
from hamicommon.placement.node_scores import NodeScores

from tests.unit.hamicommon.placement.clusters import card, cards, pod, view_of


def sentence(
    request: PodRequest, nodes: Mapping[str, Sequence[DeviceUsage]], unregistered: int = 0
) -> str:
    candidates = [NodeName(n) for n in nodes] + [NodeName(f"cpu{n}") for n in range(unregistered)]
    refusal = decide(request, view_of(nodes), candidates=candidates).refusal
    assert refusal is not None
    stock = stock_of(usage.device for usages in nodes.values() for usage in usages)
    return refusal_sentence(request, refusal.shortfalls.tables, stock, candidates=len(candidates))


THREE = {f"n{n}": [card(f"g{n}{c}", memory_mib=81920) for c in range(4)] for n in range(3)}
HALF = {"n": [card("a", used=(1, 5000, 50)), card("b", used=(1, 6000, 90))]}


@pytest.mark.parametrize(
    ("request_", "nodes", "expected"),
    [
        pytest.param(
            pod(cards(memory_mib=90112)),
            THREE,
            "no card of 12 on 3 nodes has 90112 MiB: the largest has 81920 MiB; ask for less",
            id="more memory than any card has",
        ),
        pytest.param(
            pod(cards(memory_mib=4000)),
            HALF,
            "no card of 2 on 1 node has 4000 MiB free: the most free is 3000 MiB; ask for less, "
            "or wait until a pod ends",
            id="more memory than is free",
        ),
        pytest.param(
            pod(cards(memory_mib=1, core_percent=60)),
            HALF,
            "no card of 2 on 1 node has 60 % of its cores free: the most free is 50 %; ask for "
            "less, or wait until a pod ends",
            id="cores",
        ),
        pytest.param(
            pod(cards(memory_mib=1), selection=Selection(use_types=("H200",))),
            THREE,
            "no card of 12 on 3 nodes suits the wanted card types (H200): they are NVIDIA "
            "A100-SXM4-80GB; change the pod's annotations",
            id="a type nobody has",
        ),
        pytest.param(
            pod(cards(memory_mib=1, count=5)),
            THREE,
            "no node has 5 cards of NVIDIA: the largest has 4; ask for fewer cards",
            id="more cards than a node has",
        ),
        pytest.param(
            pod(cards(memory_mib=2500, count=2)),
            HALF,
            "no node has 2 cards that fit: the best has 1 (1 with too little free memory of 2 "
            "cards on 1 node); ask for fewer cards, or wait until a pod ends",
            id="too few cards that fit",
        ),
        pytest.param(
            pod(cards(memory_mib=1)),
            {"n": [card("a", healthy=False), card("b", healthy=False), card("c", cordoned=True)]},
            "none of 3 cards on 1 node can take it: 2 unhealthy (and 1 cordoned); repair the cards",
            id="out of service",
        ),
        pytest.param(
            pod(cards(memory_mib=1), gpu=("mutex",)),
            HALF,
            "no card of 2 on 1 node can take it: 2 in use, while policy mutex wants an idle one; "
            "change the pod's policy, or wait until a card is idle",
            id="mutex",
        ),
    ],
)
def test_a_refusal_in_one_sentence(
    request_: PodRequest, nodes: Mapping[str, Sequence[DeviceUsage]], expected: str
) -> None:
    assert sentence(request_, nodes) == expected


def test_nodes_without_a_card_have_none_in_the_sentence() -> None:
    assert sentence(pod(cards(memory_mib=1)), {}, unregistered=2) == (
        "none of the 2 nodes has a card of NVIDIA; is a device plugin missing?"
    )


def test_a_quota_shows_how_much_is_missing() -> None:
    quota = QuotaShort(namespace="a", resource="r/mem", limit=8, used=6, wanted=5)

    assert quota_sentence(quota).startswith(
        "namespace a has 2 of its quota of 8 limits.r/mem left and the pod wants 5: 3 short"
    )


def test_fragmentation_explains_how_much_less_is_stranded() -> None:
    request, n = pod(cards(memory_mib=1), node="fragmentation"), NodeName("n")

    def sentence_of(**scores: float) -> str:
        ordered = {NodeName(name): score for name, score in scores.items()}
        return placed_sentence(request, n, NodeScores.of(ordered), candidates=3)

    assert sentence_of(m=-210.0, n=-30.0) == (
        "2 of 3 nodes fit, and on n the pod strands 180 milli of a card less than on the next "
        "(node policy fragmentation)"
    )
    assert "on n and 1 more of them the pod strands 60 milli" in sentence_of(l=-60.0, m=0.0, n=0.0)
    assert "fit equally well, and n is the first by name" in sentence_of(m=0.0, n=0.0)


def test_a_placement_explains_why_this_node() -> None:
    spread = pod(cards(memory_mib=1), node="spread")

    n, others = NodeName("n"), {NodeName("m"): 2.0}

    assert placed_sentence(spread, n, NodeScores.of({**others, n: 1.0}), candidates=3) == (
        "2 of 3 nodes fit, and n is the emptiest of them (node policy spread)"
    )
    assert placed_sentence(spread, n, NodeScores.of({**others, n: 2.0}), candidates=3) == (
        "2 of 3 nodes fit equally well, and n is the first by name"
    )
    assert placed_sentence(spread, n, NodeScores.of({n: 1.0}), candidates=3) == (
        "n is the only one of 3 nodes that fits"
    )
    assert "keeps" in placed_sentence(spread, n, NodeScores.of({}), candidates=3)


def test_more_cores_than_a_card_has_are_shown_as_what_they_are_taken_as() -> None:
    assert describe_request(cards(memory_mib=4096, core_percent=130)).endswith(
        "4096 MiB and 100 % of its cores"
    )
