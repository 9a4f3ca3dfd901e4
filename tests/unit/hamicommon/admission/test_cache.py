"""A cached answer for another pod equals the answer of `mutate` for this one."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hamicommon.admission import cache, pod_review
from hamicommon.admission.cache import AdmissionCache
from hamicommon.admission.mutation import mutate
from hamicommon.admission.quota import QuotaUse
from hamicommon.admission.tampering.findings import NamespacePermits, TamperingPolicy
from hamicommon.admission.verdicts import AdmissionCircumstances, AdmissionRules, Knowledge
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon.admission.pods import GPU, MEM, container, pod, rules
from tests.unit.webhook.test_any_review import KNOWLEDGE, RULES, pods

STAMPED = AdmissionCircumstances(namespace="ns", traceparent="00-a-b-01", knowledge=KNOWLEDGE)
ONE = AdmissionCache(RULES)
"""One for all cases: an entry of one case must not affect another."""


@settings(max_examples=100, deadline=None)
@given(
    pods, st.sampled_from((STAMPED, AdmissionCircumstances(), AdmissionCircumstances(stamped=True)))
)
async def test_it_answers_what_mutate_answers(
    given_: dict[str, Any], about: AdmissionCircumstances
) -> None:
    before = deepcopy(given_)
    wanted = mutate(given_, RULES, about)

    assert await ONE(given_, about) == wanted
    assert await ONE(deepcopy(given_), about) == wanted
    assert given_ == before


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record every look."""
    taken: list[object] = []

    def count_look(
        seen: dict[str, Any], installed: AdmissionRules, standing: NamespacePermits
    ) -> pod_review.Look:
        taken.append(seen)
        return pod_review.look_at(seen, installed, standing)

    monkeypatch.setattr(cache, "look_at", count_look)
    return taken


def replica(number: int) -> dict[str, Any]:
    name = f"kube-api-access-{number}"
    asking = container({GPU: 1, MEM: 500}, volumeMounts=[{"name": name, "mountPath": "/x"}])
    given_ = pod(asking, volumes=[{"name": name, "projected": {}}])
    given_["metadata"] |= {"name": f"p-{number}", "uid": str(number)}
    return given_


async def test_replicas_are_looked_at_once(looks: list[object]) -> None:
    judge = AdmissionCache(rules())
    for number in range(5):
        assert await judge(replica(number)) == mutate(replica(number), rules())

    assert len(looks) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"resources": {"limits": {GPU: 2, MEM: 500}}},
        {"resources": {"limits": {GPU: 1, MEM: 500}, "requests": {GPU: 1}}},
        {"env": [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]},
        {"securityContext": {"privileged": True}},
        {"name": "other"},
        {"restartPolicy": "Always"},
        {"volumeMounts": [{"name": "v", "mountPath": "/etc//hami"}]},
        {"volumeDevices": [{"name": "v", "devicePath": "/etc/ld.so.preload"}]},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_a_pod_that_differs_where_it_matters_is_looked_at(
    change: dict[str, Any], looks: list[object]
) -> None:
    judge = AdmissionCache(rules())
    other = replica(1)
    other["spec"]["containers"][0] |= change
    await judge(replica(0))

    assert await judge(other) == mutate(other, rules())
    assert len(looks) == 2


async def test_what_a_namespace_may_do_is_part_of_the_answer(looks: list[object]) -> None:
    trusting = replace(rules(), tampering=TamperingPolicy(trusted_namespaces=frozenset({"debug"})))
    judge = AdmissionCache(trusting)
    switched_off = replica(0)
    switched_off["spec"]["containers"][0]["env"] = [{"name": "CUDA_DISABLE_CONTROL", "value": "1"}]
    for _ in range(2):
        assert not (await judge(switched_off, AdmissionCircumstances(namespace="team"))).allowed
        assert (await judge(switched_off, AdmissionCircumstances(namespace="debug"))).allowed

    assert len(looks) == 2


async def test_a_name_that_is_no_text_is_refused_beside_replicas_with_names() -> None:
    judge = AdmissionCache(rules())
    await judge(replica(0))
    odd = replica(1)
    odd["metadata"]["name"] = 5

    assert not (await judge(odd)).allowed


async def test_quotas_and_the_trace_are_asked_each_time() -> None:
    judge = AdmissionCache(rules())
    quotas = {"ns": {MEM: QuotaUse(limit=800, used=0)}}
    roomy = AdmissionCircumstances(
        namespace="ns", traceparent="t1", knowledge=Knowledge(quotas=quotas)
    )
    full = AdmissionCircumstances(
        namespace="ns",
        traceparent="t2",
        knowledge=Knowledge(quotas={"ns": {MEM: QuotaUse(limit=800, used=700)}}),
    )

    first, second = await judge(replica(0), roomy), await judge(replica(1), full)
    assert first.patch[-1]["value"] == {"hami.io/traceparent": "t1"}
    assert (second.allowed, second.reason) == (False, "over-quota")
    assert await judge(replica(2), roomy) == first


async def test_a_verdict_that_somebody_changes_changes_no_other() -> None:
    judge = AdmissionCache(rules())
    once = await judge(replica(0))
    once.patch.clear()

    assert (await judge(replica(1))).patch == mutate(replica(1), rules()).patch


async def test_only_so_many_kinds_are_remembered(
    monkeypatch: pytest.MonkeyPatch, looks: list[object]
) -> None:
    monkeypatch.setattr(cache, "MAX_LOOKS", 2)
    judge = AdmissionCache(rules())
    for amount in (1, 2, 3, 1):
        await judge(pod(container({GPU: amount})))

    assert len(looks) == 4


async def test_a_number_of_more_than_64_bits_is_judged_each_time(looks: list[object]) -> None:
    judge = AdmissionCache(rules())
    for _ in range(2):
        assert not (await judge(pod(container({GPU: 2**80})))).allowed

    assert len(looks) == 2
