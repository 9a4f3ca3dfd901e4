"""Permissions to undo a slice: permitted namespaces, and the operator's switches."""

from typing import Any

import pytest
from hamicommon.admission.mutation import mutate
from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.admission.verdicts import AdmissionCircumstances

from tests.unit.hamicommon.admission.tampering.pods import (
    SLICE,
    UNDOING,
    env,
    expect_refusal,
    pod,
    rules,
)


@pytest.mark.parametrize(
    "first",
    [
        {"resources": {"limits": {**SLICE, "nvidia.com/priority": 0}}},
        {"resources": {"limits": {**SLICE, "nvidia.com/priority": "0"}}},
        env("CUDA_TASK_PRIORITY", "0"),
        env("CUDA_TASK_PRIORITY", "-1"),
        env("CUDA_TASK_PRIORITY", "00"),
        env("CUDA_TASK_PRIORITY", "first"),
    ],
    ids=str,
)
def test_only_permitted_namespaces_go_before_others(first: dict[str, Any]) -> None:
    verdict = expect_refusal(pod(**first))

    assert verdict.reason == "priority"
    assert "expected 1 or more" in verdict.message
    assert "HAMI_ADMISSION_PRIORITY_NAMESPACES" in verdict.message
    for names in ({"team"}, {"*"}):
        permitting = rules(TamperingPolicy(priority_namespaces=frozenset(names)))
        assert mutate(pod(**first), permitting).allowed
    other = AdmissionCircumstances(namespace="another")
    permitting = rules(TamperingPolicy(priority_namespaces=frozenset({"team"})))
    assert not mutate(pod(**first), permitting, other).allowed


@pytest.mark.parametrize("priority", [1, 2, "7"])
def test_who_goes_behind_others_needs_no_permission(priority: object) -> None:
    limits = {**SLICE, "nvidia.com/priority": priority}

    assert mutate(pod(limits=limits), rules()).allowed


def test_a_priority_is_warned_of_where_the_permissions_are_not_known() -> None:
    limits = {**SLICE, "nvidia.com/priority": 0}

    verdict = mutate(pod(limits=limits), rules(TamperingPolicy(priority_namespaces=None)))

    assert verdict.allowed
    assert "expected 1 or more" in verdict.warnings[0]


@pytest.mark.parametrize("undoing", [*UNDOING, {"limits": {**SLICE, "nvidia.com/priority": 0}}])
def test_a_trusted_namespace_and_an_allowing_installation_admit_as_hami(
    undoing: dict[str, Any],
) -> None:
    trusting = rules(TamperingPolicy(trusted_namespaces=frozenset({"team"})))
    allowing = rules(TamperingPolicy(mode="allow"))
    given_ = pod(**undoing)

    trusted, allowed = mutate(given_, trusting), mutate(given_, allowing)

    assert trusted.allowed
    assert allowed.allowed
    assert trusted.patch == allowed.patch
    assert trusted.warnings == ()
    assert "tampering" not in trusted.audit
    assert allowed.audit["tampering"].startswith("allowed: container 'other': ") or (
        "priority" in str(undoing)
    )


def test_a_privileged_container_beside_a_card_is_denied_whatever_is_allowed() -> None:
    """HAMi denies it, too."""
    allowing = rules(TamperingPolicy(mode="allow"))
    given_ = pod(securityContext={"privileged": True})

    assert mutate(given_, allowing).message == "container other is privileged"
