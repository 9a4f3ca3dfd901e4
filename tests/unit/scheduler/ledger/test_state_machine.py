"""Required transitions of an allocation, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hami_scheduler.ledger.state_machine import (
    AGENT_SEES_NONE,
    PodFacts,
    facts_of,
    gone_on_node,
    overdue,
    plugin_failed,
    verdict,
)
from hamicommon.domain.allocations import Allocation, AllocationState
from hamicommon.domain.ids import NodeName, PodUid

from tests.unit.scheduler.allocations import an_allocation

S = AllocationState
NODE = NodeName("a")
LIVE = [S.RESERVED, S.BINDING, S.BOUND, S.ALLOCATED, S.RELEASING]


def allocation(state: S, *, reason: str = "") -> Allocation:
    return an_allocation(node=NODE, state=state, reason=reason)


def facts(**changes: Any) -> PodFacts:
    values: dict[str, Any] = {"uid": PodUid("uid"), "exists": True, "phase": "Pending", **changes}
    return PodFacts(**values)


def target(state: S, *, reason: str = "", **changes: Any) -> S | None:
    found = verdict(allocation(state, reason=reason), facts(**changes))
    return None if found is None else found.target


@pytest.mark.parametrize("state", LIVE)
def test_a_pod_that_is_over_releases(state: S) -> None:
    assert target(state, phase="Succeeded", node=NODE) is S.RELEASED


def test_a_bound_pod_that_failed_before_it_ran_is_a_failed_grant() -> None:
    assert target(S.BOUND, phase="Failed", node=NODE) is S.FAILED


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ("", "pod is Failed: UnexpectedAdmissionError: no endpoint"),
        ("found bound", "pod is Failed: UnexpectedAdmissionError: no endpoint"),
        ("its agent's own message", "pod is Failed: its agent's own message"),
    ],
    ids=["the kubelet's message", "how it was bound", "the node's message"],
)
def test_a_failed_grant_shows_why(known: str, expected: str) -> None:
    message = "UnexpectedAdmissionError: no endpoint"

    found = verdict(allocation(S.BOUND, reason=known), facts(phase="Failed", phase_reason=message))

    assert found is not None
    assert found.reason == expected


@pytest.mark.parametrize("state", LIVE)
def test_a_deletion_timestamp_alone_releases_nothing(state: S) -> None:
    node = None if state in (S.RESERVED, S.BINDING) else NODE

    assert target(state, deleting=True, node=node) is None


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (S.RESERVED, S.RELEASED),
        (S.BINDING, S.RELEASING),
        (S.BOUND, S.RELEASING),
        (S.ALLOCATED, S.RELEASING),
        (S.RELEASING, None),
    ],
)
def test_a_deleted_pod_waits_for_its_node_once_it_may_have_been_bound(
    state: S, expected: S | None
) -> None:
    assert target(state, exists=False) is expected


@pytest.mark.parametrize("state", [S.BOUND, S.ALLOCATED, S.RELEASING])
def test_without_the_node_nobody_can_confirm(state: S) -> None:
    assert target(state, exists=False, node_exists=False) is S.RELEASED_UNCONFIRMED


def test_a_deleted_pod_of_which_the_node_sees_nothing_is_released() -> None:
    assert target(S.RELEASING, reason=AGENT_SEES_NONE, exists=False) is S.RELEASED


def test_a_binding_that_is_found_bound_is_bound() -> None:
    assert target(S.BINDING, node=NODE) is S.BOUND


@pytest.mark.parametrize("state", [S.RESERVED, S.BINDING])
def test_a_pod_on_another_node_gives_its_slices_up(state: S) -> None:
    assert target(state, node=NodeName("b")) is S.RELEASED


def test_started_containers_prove_the_allocation() -> None:
    assert target(S.BOUND, node=NODE, started=True) is S.ALLOCATED
    assert target(S.BOUND, node=NODE) is None


@pytest.mark.parametrize("state", [S.BOUND, S.ALLOCATED, S.RELEASING])
def test_what_the_node_reports_counts_when_the_object_is_gone(state: S) -> None:
    found = gone_on_node(allocation(state), facts(exists=False))

    assert found is not None
    assert found.target is S.RELEASED


def test_a_live_pod_is_not_released_on_the_report_of_its_node() -> None:
    assert gone_on_node(allocation(S.ALLOCATED), facts(node=NODE)) is None


@pytest.mark.parametrize(
    ("state", "changes", "expected"),
    [
        pytest.param(S.RESERVED, {}, S.EXPIRED, id="reserved"),
        pytest.param(S.BINDING, {}, S.EXPIRED, id="never-bound"),
        pytest.param(S.BINDING, {"node": NODE}, S.BOUND, id="bound-after-all"),
        pytest.param(S.BINDING, {"exists": False}, S.RELEASING, id="gone"),
        pytest.param(S.RELEASING, {"exists": False}, S.RELEASED_UNCONFIRMED, id="silent-node"),
        pytest.param(S.RELEASING, {"node": NODE, "deleting": True}, None, id="still-there"),
    ],
)
def test_every_deadline_has_an_end(state: S, changes: dict[str, Any], expected: S | None) -> None:
    found = overdue(allocation(state), facts(**changes))

    assert (found.target if found else None) is expected


@pytest.mark.parametrize(
    ("reason", "changes", "expected"),
    [
        pytest.param("pod deleted", {"agent_speaks": True}, S.RELEASING, id="a-process-lives-on"),
        pytest.param("pod deleted", {}, S.RELEASED_UNCONFIRMED, id="silent"),
        pytest.param(
            "pod deleted",
            {"agent_speaks": True, "node_exists": False},
            S.RELEASED_UNCONFIRMED,
            id="node-gone",
        ),
        pytest.param(AGENT_SEES_NONE, {"agent_speaks": True}, S.RELEASED, id="reported-before"),
    ],
)
def test_a_deleted_pods_slices_end_with_the_report_of_its_node_or_its_silence(
    reason: str, changes: dict[str, Any], expected: S
) -> None:
    found = overdue(allocation(S.RELEASING, reason=reason), facts(exists=False, **changes))

    assert found is not None
    assert found.target is expected


LEGAL_STEPS: Mapping[S, frozenset[S]] = {
    S.RESERVED: frozenset(
        {
            S.BINDING,
            S.EXPIRED,
            S.FAILED,
            S.RELEASED,
        }
    ),
    S.BINDING: frozenset(
        {
            S.BOUND,
            S.ALLOCATED,
            S.EXPIRED,
            S.FAILED,
            S.RELEASING,
            S.RELEASED,
            S.RELEASED_UNCONFIRMED,
        }
    ),
    S.BOUND: frozenset(
        {
            S.ALLOCATED,
            S.FAILED,
            S.RELEASING,
            S.RELEASED,
            S.RELEASED_UNCONFIRMED,
        }
    ),
    S.ALLOCATED: frozenset(
        {
            S.FAILED,
            S.RELEASING,
            S.RELEASED,
            S.RELEASED_UNCONFIRMED,
        }
    ),
    S.RELEASING: frozenset({S.RELEASED, S.RELEASED_UNCONFIRMED}),
}


@pytest.mark.parametrize("state", LIVE)
def test_every_verdict_is_a_legal_step(state: S) -> None:
    phases, nodes = ("Pending", "Running", "Failed", "Succeeded"), (None, NODE, NodeName("b"))
    for exists, phase, node, started in product((True, False), phases, nodes, (True, False)):
        seen = facts(exists=exists, phase=phase, node=node, started=started)

        for found in (
            verdict(allocation(state), seen),
            gone_on_node(allocation(state), seen),
            overdue(allocation(state), seen),
        ):
            assert found is None or found.target in LEGAL_STEPS[state], seen


def test_facts_are_read_from_a_pod() -> None:
    pod = {
        "metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "a"},
        "status": {"phase": "Running", "containerStatuses": [{"containerID": "x://1"}]},
    }

    assert facts_of(pod) == PodFacts(
        uid=PodUid("u"), exists=True, phase="Running", node=NODE, deleting=True, started=True
    )


def without_agent(state: S) -> Allocation:
    return replace(allocation(state), has_agent=False)


@pytest.mark.parametrize(
    ("state", "phase", "expected"),
    [
        pytest.param(S.BOUND, "success", S.ALLOCATED, id="success"),
        pytest.param(S.BINDING, "success", S.BOUND, id="success-before-our-answer"),
        pytest.param(S.BOUND, "failed", None, id="failed-keeps-the-slices"),
        pytest.param(S.ALLOCATED, "success", None, id="success-again"),
    ],
)
def test_another_plugins_answer_advances_a_grant_where_we_have_no_agent(
    state: S, phase: str, expected: S | None
) -> None:
    found = verdict(without_agent(state), facts(node=NODE, bind_phase=phase))

    assert (None if found is None else found.target) is expected


def test_the_same_answer_means_nothing_where_our_agent_runs() -> None:
    assert verdict(allocation(S.BOUND), facts(node=NODE, bind_phase="success")) is None
    assert not plugin_failed(allocation(S.BOUND), facts(node=NODE, bind_phase="failed"))
    assert plugin_failed(without_agent(S.BOUND), facts(node=NODE, bind_phase="failed"))


@pytest.mark.parametrize("state", [S.BOUND, S.ALLOCATED, S.RELEASING])
def test_without_an_agent_nobody_has_more_to_report_when_the_pod_is_deleted(state: S) -> None:
    found = verdict(without_agent(state), facts(exists=False))

    assert found is not None
    assert found.target is S.RELEASED


@pytest.mark.parametrize("phase", ["allocating", "", "nonsense"])
def test_only_the_final_values_of_the_phase_are_facts(phase: str) -> None:
    pod = {"metadata": {"uid": "uid", "annotations": {"hami.io/bind-phase": phase}}}
    assert facts_of(pod).bind_phase == ""
