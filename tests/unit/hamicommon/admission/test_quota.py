"""Quotas at admission: several cards, several containers, init containers (HAMi#1393, #2157)."""

from __future__ import annotations

from typing import Any

import pytest
from hamicommon.admission.mutation import mutate
from hamicommon.admission.quota import QuotaUse, needs
from hamicommon.admission.verdicts import (
    AdmissionCircumstances,
    AdmissionResult,
    AdmissionRules,
    Knowledge,
)
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.allocations import ContainerGrant, DeviceShare, footprints
from hamicommon.domain.ids import GpuUuid
from hamicommon.k8s.types import Json
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors
from hypothesis import given
from hypothesis import strategies as st

VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
RULES = AdmissionRules(vendors=VENDORS, scheduler_name="hami-scheduler")
GPU, MEM, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"


def container(cards: int, memory: int, cores: int = 0, **more: Any) -> Json:
    limits = {GPU: cards, MEM: memory, CORES: cores}
    return {"name": "c", "resources": {"limits": limits}, **more}


def pod(*containers: Json, init: tuple[Json, ...] = ()) -> Json:
    spec = {"containers": list(containers), "initContainers": list(init)}
    return {"metadata": {"name": "p", "namespace": "default"}, "spec": spec}


def judge_pod(given_: Json, namespace: str = "team", **quotas: QuotaUse) -> AdmissionResult:
    names = {"memory": MEM, "cores": CORES}
    limits = {names[key]: quota for key, quota in quotas.items()}
    knowledge = Knowledge(quotas={"team": limits})
    return mutate(given_, RULES, AdmissionCircumstances(namespace=namespace, knowledge=knowledge))


@pytest.mark.parametrize(
    ("given_", "memory", "cores"),
    [
        (pod(container(1, 1000, 30)), 1000, 30),
        (pod(container(2, 1000, 30)), 2000, 60),
        (pod(container(2, 1000), container(3, 500, 10)), 3500, 30),
        (pod(container(1, 1000), init=(container(2, 4000), container(1, 6000))), 8000, 0),
        (pod(container(4, 1000), init=(container(1, 2000),)), 4000, 0),
        (pod(container(1, 1000), init=(container(1, 500, restartPolicy="Always"),)), 1500, 0),
        (
            pod(
                container(1, 3000),
                init=(container(1, 6000, restartPolicy="Always"), container(1, 12_000, 30)),
            ),
            18_000,
            30,
        ),
        (
            pod(
                container(1, 3000),
                init=(container(1, 12_000, 30), container(1, 6000, restartPolicy="Always")),
            ),
            12_000,
            30,
        ),
        (pod(container(1, 1000, 250)), 1000, 100),
    ],
    ids=[
        "one card",
        "two cards",
        "two containers",
        "the larger init container",
        "apps larger than init",
        "a sidecar counts with the apps",
        "a sidecar counts with the init containers after it",
        "and not with those before it",
        "more than all cores",
    ],
)
def test_a_pod_needs_what_all_its_cards_come_to(given_: Json, memory: int, cores: int) -> None:
    found = needs(pod_request(given_, VENDORS), VENDORS)

    assert (found.get(MEM, 0), found.get(CORES, 0)) == (memory, cores)


def test_a_pod_beyond_its_quota_is_denied_with_what_is_left() -> None:
    verdict = judge_pod(pod(container(2, 3000)), memory=QuotaUse(limit=8000, used=4000))

    assert (verdict.allowed, verdict.code, verdict.reason) == (False, 403, "over-quota")
    assert verdict.message.startswith("exceeding resource quota: namespace team has 4000 of")
    assert "2000 MiB short" in verdict.message


@pytest.mark.parametrize(
    ("quota", "allowed"),
    [
        (QuotaUse(limit=8000, used=2000), True),
        (QuotaUse(limit=8000, used=2001), False),
        (QuotaUse(limit=0, used=0), False),
    ],
    ids=["to the last MiB", "one MiB over", "nothing allowed"],
)
def test_a_quota_is_used_up_to_its_last_mib(quota: QuotaUse, allowed: bool) -> None:
    assert judge_pod(pod(container(2, 3000)), memory=quota).allowed is allowed


def test_cores_have_their_own_quota() -> None:
    verdict = judge_pod(pod(container(2, 1, 60)), cores=QuotaUse(limit=100, used=0))

    assert verdict.reason == "over-quota"
    assert CORES in verdict.message


def test_the_requests_namespace_counts_and_not_the_one_in_the_pod() -> None:
    quota = QuotaUse(limit=1, used=0)

    assert judge_pod(pod(container(1, 1000)), memory=quota).reason == "over-quota"
    assert judge_pod(pod(container(1, 1000)), "default", memory=quota).allowed


def test_a_percentage_is_left_to_the_scheduler_that_knows_the_card() -> None:
    asking = {"name": "c", "resources": {"limits": {GPU: 1, "nvidia.com/gpumem-percentage": 50}}}

    assert judge_pod(pod(asking), memory=QuotaUse(limit=1, used=0)).allowed


BY_AMOUNT = [v for v in VENDORS if v.resources.memory and v.name != "Enflame"]
"""Enflame's memory becomes a number of slices, and only the card has the size of a slice."""


@pytest.mark.parametrize("vendor", BY_AMOUNT, ids=lambda vendor: vendor.name)
def test_every_vendor_with_memory_has_a_quota(vendor: Any) -> None:
    names = vendor.resources
    limits = {names.count: 1, names.memory: 4}
    given_ = pod({"name": "c", "resources": {"limits": limits}})
    knowledge = Knowledge(quotas={"team": {names.memory: QuotaUse(limit=0, used=0)}})
    verdict = mutate(given_, RULES, AdmissionCircumstances(namespace="team", knowledge=knowledge))

    assert verdict.reason == "over-quota", verdict
    assert names.memory in verdict.message


def test_what_is_unknown_admits_and_the_audit_shows_it() -> None:
    verdict = mutate(pod(container(1, 10**6)), RULES, AdmissionCircumstances(namespace="team"))

    assert verdict.allowed
    assert verdict.audit["quotas"] == "unknown: the ledger's quota numbers are not known"
    assert verdict.audit["cards"] == "unknown: the cluster's cards are not known"


cards = st.tuples(st.integers(1, 3), st.integers(0, 4000), st.integers(0, 100))


@given(st.lists(cards, min_size=1, max_size=3), st.lists(cards, max_size=2), st.data())
def test_admission_never_counts_more_than_the_ledger_will(apps, inits, data) -> None:
    given_ = pod(*(container(*app) for app in apps), init=tuple(container(*i) for i in inits))
    request = pod_request(given_, VENDORS)
    grants = []
    for each in request.containers:
        asked = each.requests[0]
        chosen = data.draw(st.permutations(range(4)))[: asked.count]
        shares = tuple(
            DeviceShare(
                uuid=GpuUuid(f"GPU-{number}"),
                vendor="NVIDIA",
                memory_mib=asked.memory_mib,
                core_percent=asked.core_percent,
            )
            for number in chosen
        )
        grants.append(
            ContainerGrant(index=len(grants), name=each.name, role=each.role, shares=shares)
        )
    counted = footprints(grants)

    found = needs(request, VENDORS)
    assert found.get(MEM, 0) <= sum(card.memory_mib for card in counted)
    assert found.get(CORES, 0) <= sum(card.core_percent for card in counted)
