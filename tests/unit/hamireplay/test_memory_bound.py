"""Slices that ask for card memory alone: less is stranded, just as of cores."""

import pytest
from hamicommon.domain.ids import NodeName
from hamireplay.arriving import Course, run
from hamireplay.policies import cluster_under
from hamireplay.schedule import arrivals, tie_order
from hamireplay.trace import Trace, TraceNode, TracePod

CARD_MIB = 25_000
PERCENTS = (65, 65, 65, 47, 47, 47, 47, 32, 32, 32)
"""Slices of a card: 65 and 32 fill one, 47 and 47 nearly."""


def trace(*, of_memory: bool) -> Trace:
    """80 cards, and pods for all of them; each asks for memory alone, or for cores alone."""
    return Trace(
        nodes=[
            TraceNode(
                name=NodeName(f"n{number:02d}"),
                cpu_milli=64_000,
                memory_mib=100_000,
                cards=4,
                model="L4",
                card_memory_mib=CARD_MIB if of_memory else 0,
            )
            for number in range(20)
        ],
        pods=[
            TracePod(
                name=f"p{number:03d}",
                cpu_milli=500,
                memory_mib=0,
                cards=1,
                card_milli=0 if of_memory else 10 * percent,
                card_memory_mib=CARD_MIB * percent // 100 if of_memory else 0,
            )
            for number, percent in enumerate(PERCENTS * 10)
        ],
    )


def course(policy: str, seed: int, *, of_memory: bool = True) -> Course:
    """To 130 % of the cards."""
    pods, memory_mib = trace(of_memory=of_memory), CARD_MIB if of_memory else 0
    return run(
        arrivals(pods, seed, load=1.3, card_memory_mib=memory_mib),
        cluster_under(policy, pods, tie_order(pods.nodes, seed)),
        capacity_milli=pods.cards * 1000,
        card_memory_mib=memory_mib,
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_more_of_the_memory_is_in_use_than_with_binpack(seed: int) -> None:
    ours = course("fragmentation", seed)

    for policy in ("binpack", "binpack-cards"):
        theirs = course(policy, seed)
        assert ours.at(100) > theirs.at(100) + 1.2
        assert ours.at(130) > theirs.at(130) + 0.7


@pytest.mark.parametrize("policy", ["fragmentation", "binpack-cards"])
def test_memory_is_granted_as_cores_are(policy: str) -> None:
    assert course(policy, 1).curve == course(policy, 1, of_memory=False).curve
