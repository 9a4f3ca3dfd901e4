"""Recorded and random pods through a running control plane: by claims as by limits."""

from collections import Counter
from copy import deepcopy
from random import Random

import pytest
from hamicommon.dra.claims import VENDOR
from hamicommon.dra.conversion import NotClaimable, convert
from hamicommon.dra.shapes import shape_from, template_of
from hamicommon.k8s.annotations import CLAIM_SHAPE
from hamicommon.k8s.types import Json

from tests import measured
from tests.control_plane import Assets
from tests.e2e.dra.played_placements import Asked, Case, asking, case_of, play_cases
from tests.reference.random import generate
from tests.unit.hamicommon import recorded
from tests.unit.hamicommon.simulation.objects import every_vendor

VENDORS = every_vendor()
RANDOM = 150
SHARED_MODES = "hami-core,mps"
"""Modes in `nvidia.com/vgpu-mode` without MIG: cards in MIG mode are no devices of DRA."""


def recorded_cases() -> list[Json]:
    return recorded.lines("filter-nvidia.jsonl")


def random_cases() -> list[Json]:
    return [generate.case(Random(seed), [VENDOR]) for seed in range(RANDOM)]


@pytest.fixture(params=[recorded_cases, random_cases], ids=["recorded", "random"])
def cases(request: pytest.FixtureRequest, kubernetes_assets: Assets) -> list[Case]:
    """Cases with a pod that can be written by claims."""
    if kubernetes_assets.version < (1, 36):
        pytest.skip("parts of devices are in Kubernetes 1.36 and newer")
    found = [case_of(number, given, VENDORS) for number, given in enumerate(request.param())]
    return [case for case in found if case is not None and case.fits and has_equal(case)]


def has_equal(case: Case) -> bool:
    """Whether a claim can ask for the same: a pod with claims keeps an init container's slice to
    its end."""
    init = any(each.role == "init" and each.requests for each in case.request.containers)
    return case.request.wants_devices and not init


def by_limits(case: Case) -> Asked:
    return asking(case, prefix="limits", modes=SHARED_MODES), []


def as_claims(case: Case) -> Asked | None:
    """Convert the pod as the webhook does; None for one that keeps its limits."""
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


async def test_pods_find_room_by_claims_where_they_do_by_limits(cases: list[Case]) -> None:
    """kube-scheduler takes the first card that fits, so it may be another one."""
    asked = {case.name: each for case in cases if (each := as_claims(case)) is not None}
    asking = [case for case in cases if case.name in asked]
    async with play_cases(asking) as system:
        limits = await system.place({case.name: by_limits(case) for case in asking})
        claims = await system.place(asked)
    assert {name for name in asked if claims[name]} == {name for name in asked if limits[name]}
    assert system.nodes.refused == {}
    found = Counter(
        "refused" if each is None else "same cards" if each == limits[name] else "other cards"
        for name, each in claims.items()
    )
    measured.note(f"{len(asked)} pods, by claims as by limits: {dict(found)}")
