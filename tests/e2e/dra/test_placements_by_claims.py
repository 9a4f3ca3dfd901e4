"""Recorded and random pods through a running control plane: by claims as by limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from random import Random

import pytest
from hami_scheduler.placement.pod_requests import SHARED_MODES
from hamicommon.dra.claims import VENDOR
from hamicommon.dra.conversion import NotClaimable, convert
from hamicommon.dra.shapes import shape_from, template_of
from hamicommon.k8s.annotations import CLAIM_SHAPE
from hamicommon.k8s.types import Json
from hamilocal.servers.control_plane.assets import Assets

from tests import measured
from tests.e2e.dra.played_placements import Asked, Case, Placement, asking, case_of, played
from tests.reference import by_claims
from tests.reference.random import generate
from tests.unit.hamicommon import recorded
from tests.unit.hamicommon.simulation.objects import every_vendor

pytestmark = pytest.mark.e2e

VENDORS = every_vendor()
RANDOM = 150


def recorded_cases() -> list[Json]:
    return recorded.lines("filter-nvidia.jsonl")


def random_cases() -> list[Json]:
    return [generate.case(Random(seed), [VENDOR]) for seed in range(RANDOM)]


@pytest.fixture(params=[recorded_cases, random_cases], ids=["recorded", "random"])
def cases(request: pytest.FixtureRequest, kubernetes_assets: Assets) -> list[Case]:
    """Those whose pods can be asked for by claims."""
    if kubernetes_assets.version < (1, 36):
        pytest.skip("parts of devices are in Kubernetes 1.36 and newer")
    found = [case_of(number, given, VENDORS) for number, given in enumerate(request.param())]
    return [
        case
        for case in found
        if case is not None and case.fits and not by_claims.obstacle(case.request)
    ]


def by_limits(case: Case) -> Asked:
    return asking(case, prefix="limits", modes=SHARED_MODES), []


def led_claims(case: Case) -> Asked:
    """Amounts and parts of cards in the claims; policies and selections stay on the pod."""
    pod = asking(case, prefix="claims")
    claims = by_claims.claims_of(case.request, pod["metadata"]["name"])
    return by_claims.with_claims(pod, claims), list(claims.values())


async def test_where_the_ledger_allocates_claims_get_the_nodes_and_cards_of_limits(
    cases: list[Case],
) -> None:
    async with played(cases, "lead") as system:
        limits = await system.place({case.name: by_limits(case) for case in cases})
        claims = await system.place({case.name: led_claims(case) for case in cases})
    assert claims == limits
    placed = {name: each for name, each in claims.items() if each is not None}
    assert 0 < len(placed) < len(cases)
    measured.note(
        f"lead: {len(cases)} pods, {len(placed)} of them placed, by claims as by limits"
        + "".join(f"; {number} on the node that HAMi chose" for number in as_hami(cases, placed))
    )


def as_hami(cases: list[Case], placed: Mapping[str, Placement]) -> list[int]:
    """How many came where HAMi was recorded to place them (it breaks ties at random); empty: it was
    not asked."""
    asked = [case for case in cases if case.chosen]
    same = [case for case in asked if case.name in placed and placed[case.name][0] == case.chosen]
    return [len(same)] if asked else []


def followed_claims(case: Case) -> Asked | None:
    """As the webhook converts the pod; None for one that keeps its limits."""
    pod = deepcopy(asking(case, prefix="claims"))
    try:
        convert(pod, case.request, VENDORS.resource_names)
    except NotClaimable:
        return None
    shape = shape_from(pod["metadata"]["annotations"][CLAIM_SHAPE])
    sizes_mib = {usage.device.memory_mib for _, usage in case.cards}
    template, name = template_of(shape, "default", sizes_mib), pod["metadata"]["name"]
    [entry] = pod["spec"]["resourceClaims"]
    entry["resourceClaimName"] = name
    del entry["resourceClaimTemplateName"]
    return pod, [{"metadata": {"name": name}, "spec": template["spec"]["spec"]}]


async def test_where_kube_scheduler_allocates_the_same_pods_find_room(cases: list[Case]) -> None:
    """It takes the first card that fits, so which one is promised in lead alone."""
    asked = {case.name: each for case in cases if (each := followed_claims(case)) is not None}
    asking = [case for case in cases if case.name in asked]
    async with played(asking, "follow") as system:
        limits = await system.place({case.name: by_limits(case) for case in asking})
        claims = await system.place(asked)
    assert {name for name in asked if claims[name]} == {name for name in asked if limits[name]}
    assert system.nodes.refused == {}
    found = Counter(
        "refused" if each is None else "same cards" if each == limits[name] else "other cards"
        for name, each in claims.items()
    )
    measured.note(f"follow: {len(asked)} pods, by claims as by limits: {dict(found)}")
