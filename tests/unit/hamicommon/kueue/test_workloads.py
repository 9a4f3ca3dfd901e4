"""A Workload is read as the cards that its pods will ask for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.kueue.workloads import (
    MAX_PODS,
    Verdict,
    check_state,
    nodes_for,
    pod_sets,
    quota_held_since,
    with_verdict,
)

from tests.unit.hamicommon.kueue.workloads import CHECK, SINCE, template, workload
from tests.unit.hamicommon.simulation.objects import every_vendor

RULES = AdmissionRules(vendors=every_vendor(), scheduler_name="hami-scheduler")
POLICY = Policy(node="spread", gpu=("binpack",))
NOW = datetime(2026, 11, 30, 12, 5, tzinfo=UTC)


def test_the_amounts_are_those_that_admission_makes_of_each_template() -> None:
    asked = workload(
        "w",
        ("leader", 1, template(gpumem=500)),
        ("workers", 2, template(gpu=2)),
        ("none", 0, template(gpu=1)),
        ("plain", 9, {"spec": {"containers": [{"name": "c"}]}}),
    )
    leader, workers = pod_sets(asked, RULES, POLICY)

    [wanted] = leader.members[0].containers[0].requests
    assert (wanted.count, wanted.memory_mib) == (1, 500)
    [wanted] = workers.members[0].containers[0].requests
    assert (wanted.count, wanted.memory_percent, wanted.core_percent) == (2, 100, 100)
    assert [each.name for each in workers.members] == ["w/workers/0", "w/workers/1"]
    assert len({each.uid for each in (*leader.members, *workers.members)}) == 3
    assert {each.namespace for each in workers.members} == {"default"}
    assert workers.members[0].policy == POLICY
    assert workers.flavors == {"a100"}


def test_the_admitted_count_is_taken_where_kueue_admits_a_part() -> None:
    asked = workload("w", ("main", 8, template(gpu=1, gpumem=1)))
    [assigned] = asked["status"]["admission"]["podSetAssignments"]
    assigned["count"] = 3
    [pods] = pod_sets(asked, RULES, POLICY)
    assert len(pods.members) == 3


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (("main", 1, template(gpu=1, gpumem="x")), "pod set main: container 'main': .*gpumem is x"),
        (("main", MAX_PODS + 1, template(gpu=1)), "the workload has 1001 pods: .* at most 1000"),
    ],
)
def test_pods_that_would_be_refused_are_named(made: tuple[str, int, Json], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        pod_sets(workload("w", made), RULES, POLICY)


TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("node", "spec", "fits"),
    [
        ({}, {}, True),
        ({"labels": {"pool": "a"}}, {"nodeSelector": {"pool": "a"}}, True),
        ({"labels": {"pool": "b"}}, {"nodeSelector": {"pool": "a"}}, False),
        ({"taints": [TAINT]}, {}, False),
        ({"taints": [TAINT | {"effect": "PreferNoSchedule"}]}, {}, True),
        ({"taints": [TAINT]}, {"tolerations": [{"operator": "Exists"}]}, True),
        ({"taints": [TAINT]}, {"tolerations": [{"key": "gpu", "operator": "Exists"}]}, True),
        ({"taints": [TAINT]}, {"tolerations": [{"key": "gpu", "value": "yes"}]}, True),
        ({"taints": [TAINT]}, {"tolerations": [{"key": "gpu", "value": "no"}]}, False),
        (
            {"taints": [TAINT]},
            {"tolerations": [{"operator": "Exists", "effect": "NoExecute"}]},
            False,
        ),
    ],
)
def test_selectors_and_taints_leave_some_nodes(node: Json, spec: Json, fits: bool) -> None:
    made = template(gpu=1, gpumem=1)
    made["spec"] |= spec
    [pods] = pod_sets(workload("w", ("main", 1, made)), RULES, POLICY)
    shown = {
        "metadata": {"name": "n", "labels": node.get("labels")},
        "spec": {"taints": node.get("taints")},
    }
    assert (nodes_for(pods, [shown], {}) == {"n"}) == fits


def test_a_flavors_labels_leave_some_nodes() -> None:
    [pods] = pod_sets(workload(), RULES, POLICY)
    shown = {"metadata": {"name": "n", "labels": {"card": "a100"}}}
    assert nodes_for(pods, [shown], {"card": "a100"}) == {"n"}
    assert nodes_for(pods, [shown], {"card": "h100"}) == frozenset()


def test_quota_counts_only_while_it_is_held() -> None:
    assert quota_held_since(workload()) == datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert quota_held_since(workload(spec={"active": False})) is None
    assert quota_held_since(workload(status={"conditions": []})) is None
    finished = workload()
    finished["status"]["conditions"].append({"type": "Finished", "status": "True"})
    assert quota_held_since(finished) is None


def test_the_entry_of_our_check_is_found() -> None:
    found = check_state(workload(), [CHECK])
    assert found is not None
    assert found["name"] == CHECK
    assert check_state(workload(), ["else"]) is None


def test_a_verdict_changes_one_entry_and_is_guarded_by_the_version() -> None:
    asked = workload()
    verdict = Verdict(state="Ready", message="1 of 1 pods fit", booked=True)
    patch = with_verdict(asked, CHECK, verdict, now=NOW, requeue_s=60, annotation="key")

    assert patch["metadata"] == {"resourceVersion": "7"}
    others, ours = patch["status"]["admissionChecks"]
    assert others == asked["status"]["admissionChecks"][0]
    assert ours == {
        "name": CHECK,
        "state": "Ready",
        "message": "1 of 1 pods fit",
        "lastTransitionTime": "2026-11-30T12:05:00Z",
        "podSetUpdates": [{"name": "main", "annotations": {"key": "uid-w"}}],
    }


def test_a_new_message_is_no_transition_and_retry_names_its_time() -> None:
    still = with_verdict(
        workload(),
        CHECK,
        Verdict(state="Pending", message="no"),
        now=NOW,
        requeue_s=60,
        annotation="key",
    )
    assert still["status"]["admissionChecks"][1]["lastTransitionTime"] == SINCE
    retry = with_verdict(
        workload(),
        CHECK,
        Verdict(state="Retry", message="no"),
        now=NOW,
        requeue_s=60,
        annotation="key",
    )
    assert retry["status"]["admissionChecks"][1]["requeueAfterSeconds"] == 60
