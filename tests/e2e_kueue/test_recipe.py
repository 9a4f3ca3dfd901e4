"""Kueue counts as `docs/kueue.md` states, with the queue of `hamictl kueue setup`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hamicommon.admission.mistakes.queued_jobs import find_miscounts
from hamicommon.k8s.annotations import TRACEPARENT
from hamicommon.k8s.types import Json
from hamicommon.kueue.recipe import POLICY_NAME, render_policy
from hamilocal.system.options import UpOptions

from tests.e2e.system import System, a_pod, slice_of, wait
from tests.e2e_kueue.conftest import (
    COLLECTIONS,
    JOBS,
    QUEUE_LABEL,
    WORKLOADS,
    bound_pods,
    condition_of,
    create_job,
    create_object,
    job_of,
    pods_of,
    quota_used,
    wait_for_condition,
)

GPU, MEMORY, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
TOTAL_MEMORY, TOTAL_CORES = "nvidia.com/total-gpumem", "nvidia.com/total-gpucores"
GATE = {"name": "kueue.x-k8s.io/admission"}
PODS = "/api/v1/namespaces/default/pods"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
VENDORS = UpOptions().vendors()
MISCOUNTED = {
    "two-containers": (slice_of(1000), 2),
    "memory-alone": ({MEMORY: 1000}, 1),
    "whole-card": ({GPU: 1}, 1),
    "percentage": ({GPU: 1, "nvidia.com/gpumem-percentage": 50}, 1),
}


@pytest.mark.parametrize(
    ("limits", "containers", "counted"),
    [
        pytest.param(
            {GPU: 2, MEMORY: 1000, CORES: 10},
            1,
            {GPU: "2", TOTAL_MEMORY: "2k", TOTAL_CORES: "20"},
            id="rightly",
        ),
        pytest.param(*MISCOUNTED["two-containers"], {GPU: "2", TOTAL_MEMORY: "4k"}, id="sum"),
        pytest.param(*MISCOUNTED["memory-alone"], {TOTAL_MEMORY: "1k"}, id="no count"),
        pytest.param(*MISCOUNTED["whole-card"], {GPU: "1"}, id="no memory"),
    ],
)
def test_kueue_counts_the_template_as_the_page_states(
    queued: System, limits: object, containers: int, counted: dict[str, str]
) -> None:
    create_job(queued, job_of("counted", limits, containers=containers))

    workload = wait_for_condition(queued, "counted", "Admitted")

    assert quota_used(workload) == counted
    wait(lambda: bound_pods(pods_of(queued, "counted")), "the Job's pod to be bound")


def test_memory_in_percent_is_never_admitted(queued: System) -> None:
    create_job(queued, job_of("percent", MISCOUNTED["percentage"][0]))

    workload = wait_for_condition(queued, "percent", "QuotaReserved", "False")

    assert (
        "nvidia.com/gpumem-percentage unavailable"
        in condition_of(workload, "QuotaReserved")["message"]
    )
    assert pods_of(queued, "percent") == []


@pytest.fixture
def policy(queued: System) -> Iterator[System]:
    """The system with the policy in force."""
    objects = render_policy(VENDORS)
    for item in objects:
        create_object(queued, item)

    def is_refused() -> bool:
        asked = queued.api.post(
            JOBS, params={"dryRun": "All"}, json=job_of("probe", MISCOUNTED["whole-card"][0])
        )
        return asked.status_code == 422 and POLICY_NAME in asked.text

    wait(is_refused, "the policy to be in force")
    yield queued
    for item in objects:
        path = f"{COLLECTIONS[item['kind']]}/{item['metadata']['name']}"
        assert queued.api.delete(path).status_code == 200


@pytest.mark.parametrize("name", MISCOUNTED)
def test_lint_warns_of_what_is_miscounted_and_the_policy_refuses_what_lacks_an_amount(
    policy: System, name: str
) -> None:
    limits, containers = MISCOUNTED[name]
    job = {"kind": "Job", **job_of(name, limits, containers=containers)}

    assert len(find_miscounts(job, VENDORS)) == 1
    answer = policy.api.post(JOBS, json=job)
    if name == "two-containers":
        assert answer.status_code == 201, answer.text
    else:
        assert answer.status_code == 422, answer.text
        assert "names nvidia.com/gpu and nvidia.com/gpumem" in answer.json()["message"]


def test_the_policy_leaves_jobs_alone_that_are_counted_rightly_or_have_no_queue(
    policy: System,
) -> None:
    create_job(policy, job_of("right", slice_of(1000)))
    create_job(policy, job_of("cpu", {"cpu": 1}))
    create_job(policy, job_of("whole", {GPU: 1}, queue=""))

    wait_for_condition(policy, "right", "Admitted")
    wait(lambda: bound_pods(pods_of(policy, "whole")), "the pod without a queue to be bound")


def test_a_plain_pod_is_gated_and_counted_after_admission(queued: System) -> None:
    pod = a_pod("plain", {MEMORY: 1000})
    pod["metadata"]["labels"] = {QUEUE_LABEL: "gpu"}
    answer = queued.create(pod)
    assert answer.status_code == 201, answer.text
    assert GATE in answer.json()["spec"]["schedulingGates"]
    # Admission filled in the count before Kueue made the Workload.
    assert answer.json()["spec"]["containers"][0]["resources"]["limits"][GPU] == "1"

    queued.wait_for_phase("plain", "Running")

    [workload] = queued.get(WORKLOADS)["items"]
    assert quota_used(workload) == {GPU: "1", TOTAL_MEMORY: "1k"}


def pod_as_admitted(system: System, *, by_us: bool) -> Json:
    """Return a pod for the queue as it would be stored, once our webhook is called, or is not."""

    def admitted_pod() -> Json | None:
        pod = a_pod("order", {MEMORY: 1000})
        pod["metadata"]["labels"] = {QUEUE_LABEL: "gpu"}
        found = system.api.post(PODS, params={"dryRun": "All"}, json=pod).json()
        limits = found["spec"]["containers"][0]["resources"]["limits"]
        return found if (GPU in limits) == by_us else None

    found = wait(admitted_pod, f"a pod that our webhook {'saw' if by_us else 'did not see'}")
    metadata = found["metadata"]
    # Kueue's hash is of the pod as its webhook got it.
    annotations = {
        key: value
        for key, value in metadata["annotations"].items()
        if key not in (TRACEPARENT, "kueue.x-k8s.io/role-hash")
    }
    return {"spec": found["spec"], "labels": metadata["labels"], "annotations": annotations}


def test_the_same_pod_is_stored_whichever_webhook_comes_first(queued: System) -> None:
    """Webhooks are called in the order of their configurations' names."""
    [ours] = [
        each
        for each in queued.get(WEBHOOKS)["items"]
        if not each["metadata"]["name"].startswith("kueue")
    ]
    name, last = ours["metadata"]["name"], "z-comes-last"
    assert name < "kueue"
    first = pod_as_admitted(queued, by_us=True)
    assert GATE in first["spec"]["schedulingGates"]

    for before, after in ((name, last), (last, name)):
        assert queued.api.delete(f"{WEBHOOKS}/{before}").status_code == 200
        pod_as_admitted(queued, by_us=False)
        moved = {**ours, "metadata": {"name": after}}
        assert queued.api.post(WEBHOOKS, json=moved).status_code == 201
        assert pod_as_admitted(queued, by_us=True) == first


def test_a_deployments_pod_is_gated_and_counted_after_admission(queued: System) -> None:
    labels = {"app": "web"}
    deployment = {
        "metadata": {"name": "web", "labels": {QUEUE_LABEL: "gpu"}},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": a_pod("", {MEMORY: 1000})["spec"]},
        },
    }
    answer = queued.api.post(f"{DEPLOYMENTS}", json=deployment)
    assert answer.status_code == 201, answer.text

    wait(lambda: bound_pods(queued.pods()), "the Deployment's pod to be bound")

    [workload] = queued.get(WORKLOADS)["items"]
    assert quota_used(workload) == {GPU: "1", TOTAL_MEMORY: "1k"}
    queued.api.request("DELETE", f"{DEPLOYMENTS}/web", json={"propagationPolicy": "Foreground"})
    wait(lambda: queued.get(DEPLOYMENTS)["items"] == [], "the Deployment to be gone")


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SETS = (("jobset.x-k8s.io", "v1alpha2", "JobSet"), ("ray.io", "v1", "RayJob"))


def set_of(kind: str, limits: object) -> dict[str, Any]:
    """A JobSet or RayJob whose second template asks for these limits."""
    templates = [job_of("x", each)["spec"]["template"] for each in (slice_of(1000), limits)]
    first, second = templates
    spec: dict[str, Any] = {
        "rayClusterSpec": {
            "headGroupSpec": {"template": first},
            "workerGroupSpecs": [{"groupName": "w", "template": second}],
        }
    }
    if kind == "JobSet":
        jobs = [
            {"name": str(n), "template": {"spec": {"template": t}}} for n, t in enumerate(templates)
        ]
        spec = {"replicatedJobs": jobs}
    return {"metadata": {"name": "set", "labels": {QUEUE_LABEL: "gpu"}}, "spec": spec}


@pytest.mark.parametrize(("group", "version", "kind"), SETS)
def test_the_policy_looks_at_every_template_of_a_set(
    policy: System, group: str, version: str, kind: str
) -> None:
    plural = f"{kind.lower()}s"
    open_schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd = {
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": open_schema},
                }
            ],
        },
    }
    if group == "jobset.x-k8s.io":
        # The API server keeps groups of the project to approved ones.
        crd["metadata"]["annotations"] = {"api-approved.kubernetes.io": "unapproved, a test"}
    answer = policy.api.post(CRDS, json=crd)
    assert answer.status_code == 201, answer.text
    path = f"/apis/{group}/{version}/namespaces/default/{plural}"
    dry = {"dryRun": "All"}
    identity = {"apiVersion": f"{group}/{version}", "kind": kind}

    def dry_run_status(limits: object) -> int:
        return policy.api.post(path, params=dry, json=identity | set_of(kind, limits)).status_code

    wait(lambda: dry_run_status(slice_of(1000)) == 201, f"{kind} to be served")
    wait(lambda: dry_run_status({GPU: 1}) == 422, f"the policy to see {kind}")
    assert dry_run_status({"cpu": 1}) == 201
    assert policy.api.delete(f"{CRDS}/{plural}.{group}").status_code == 200
