"""Where the ledger allocates, a pod by claims gets the nodes and cards that it gets by limits."""

from collections import Counter
from random import Random

from hamicommon.k8s.pod_object import containers_of

from tests.reference import by_claims
from tests.reference.random import generate
from tests.unit.hamicommon.simulation.objects import every_vendor

CASES = 200
NOT_BY_CLAIMS = {
    "an init container's slice, which a pod with claims keeps to its end",
    "no card",
    "refused by limits already",
}
VENDORS = every_vendor()
OTHERS = [vendor.name for vendor in VENDORS if vendor.name != "NVIDIA"]


def test_random_pods_get_the_same_cards_on_every_node_by_claims_as_by_limits() -> None:
    found = Counter(
        by_claims.compared(generate.case(Random(seed), ["NVIDIA"]), VENDORS)
        for seed in range(CASES)
    )
    # Whatever is not the same is named here, so nothing is left out unseen.
    assert set(found) - NOT_BY_CLAIMS == {by_claims.SAME}
    assert found[by_claims.SAME] > CASES // 2


def test_a_pod_of_another_vendor_is_not_compared_but_named() -> None:
    cases = (generate.case(Random(seed), OTHERS) for seed in range(20))
    found = {by_claims.compared(case, VENDORS) for case in cases}
    assert by_claims.SAME not in found


def test_pods_that_ask_for_an_amount_and_a_percentage_get_the_same_cards_too() -> None:
    """The amount is taken, and the percentage counts for the order of the cards."""
    found = Counter[str]()
    for seed in range(CASES):
        chance = Random(seed)
        case = generate.case(chance, ["NVIDIA"])
        for _, each in containers_of(case["in"]["pod"]):
            limits = (each.get("resources") or {}).get("limits") or {}
            if "nvidia.com/gpumem" in limits:
                limits["nvidia.com/gpumem-percentage"] = str(chance.randint(1, 100))
        found[by_claims.compared(case, VENDORS)] += 1
    assert set(found) - NOT_BY_CLAIMS == {by_claims.SAME}
    assert found[by_claims.SAME] > CASES // 2
