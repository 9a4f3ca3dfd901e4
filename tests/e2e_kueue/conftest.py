"""One system behind the real Kueue; skipped where HAMI_KUEUE names no folder of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hamicommon.k8s.types import Json

from tests.control_plane import Assets
from tests.e2e.conftest import running_system
from tests.e2e.system import System, hamictl, slice_of, wait
from tests.e2e_kueue.kueue import KueueFolder, find_kueue, running_kueue
from tests.e2e_node.conftest import controller_manager

JOBS = "/apis/batch/v1/namespaces/default/jobs"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS = f"{KUEUE}/namespaces/default/workloads"
CHECKED = "checked"
"""A queue that asks for slices, and has quota for more than there is."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
COLLECTIONS = {
    "ResourceFlavor": f"{KUEUE}/resourceflavors",
    "ClusterQueue": f"{KUEUE}/clusterqueues",
    "AdmissionCheck": f"{KUEUE}/admissionchecks",
    "LocalQueue": f"{KUEUE}/namespaces/default/localqueues",
    "ValidatingAdmissionPolicy": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    ),
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    ),
}
CONTROLLERS = (
    "job-controller,deployment-controller,replicaset-controller,garbage-collector-controller"
)


@pytest.fixture(scope="session")
def kueue_folder() -> KueueFolder:
    """The real Kueue."""
    return find_kueue()


def job_of(
    name: str, limits: object = None, *, pods: int = 1, containers: int = 1, queue: str = "gpu"
) -> Json:
    """A Job whose pods run until they are deleted; `limits` are of each container."""
    asked = limits or slice_of(1000)
    assert isinstance(asked, dict)
    return {
        "metadata": {"name": name, "labels": {QUEUE_LABEL: queue} if queue else {}},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 0,
                    "containers": [
                        {
                            "name": f"c{number}",
                            "image": "hami/vgpu-probe",
                            "command": ["vgpu-probe"],
                            "resources": {"limits": {k: str(v) for k, v in asked.items()}},
                        }
                        for number in range(containers)
                    ],
                }
            },
        },
    }


def create_job(system: System, job: Json) -> Json:
    """Create the Job."""
    answer = system.api.post(JOBS, json=job)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def workload_of(system: System, job: str) -> Json | None:
    """Return the Job's Workload, if Kueue has made it."""
    for workload in system.get(WORKLOADS)["items"]:
        if any(owner["name"] == job for owner in workload["metadata"].get("ownerReferences", ())):
            return dict(workload)
    return None


def condition_of(workload: Json | None, kind: str) -> Json:
    """Return the Workload's condition of the kind; empty: it has none."""
    conditions = ((workload or {}).get("status") or {}).get("conditions") or ()
    return next((dict(each) for each in conditions if each["type"] == kind), {})


def wait_for_condition(system: System, job: str, kind: str, status: str = "True") -> Json:
    """Wait until the Job's Workload has the condition; returns the Workload."""

    def matching_workload() -> Json | None:
        workload = workload_of(system, job)
        return workload if condition_of(workload, kind).get("status") == status else None

    return wait(
        matching_workload,
        f"the Workload of {job} to be {kind}={status}",
        timeout_s=60,
        why=lambda: json.dumps((workload_of(system, job) or {}).get("status")),
    )


def quota_used(workload: Json) -> dict[str, str]:
    """Return what Kueue counts for the Workload's one pod set."""
    [assigned] = workload["status"]["admission"]["podSetAssignments"]
    return dict(assigned["resourceUsage"])


def pods_of(system: System, job: str) -> list[Json]:
    """Return the Job's pods."""
    selector = {"labelSelector": f"batch.kubernetes.io/job-name={job}"}
    answer = system.api.get("/api/v1/namespaces/default/pods", params=selector)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["items"])


def bound_pods(pods: list[Json]) -> list[Json]:
    """Return those that have a node."""
    return [pod for pod in pods if pod["spec"].get("nodeName")]


def delete_jobs(system: System) -> None:
    """Delete every Job with its pods, and wait until neither they nor Workloads are left."""
    for job in system.get(JOBS)["items"]:
        system.api.request(
            "DELETE",
            f"{JOBS}/{job['metadata']['name']}",
            json={"propagationPolicy": "Foreground"},
        )
    wait(lambda: system.get(JOBS)["items"] == [], "the Jobs to be gone")
    system.delete_all()
    wait(lambda: system.get(WORKLOADS)["items"] == [], "the Workloads to be gone")


@contextmanager
def queued_system(
    folder: Path,
    assets: Assets,
    found: KueueFolder,
    *flags: str,
) -> Iterator[System]:
    """A system with two queues that `hamictl kueue setup` makes of its nodes, and Kueue."""
    environment = {"HAMI_SCHEDULER_KUEUE": "on"}
    with ExitStack() as stack:
        system = stack.enter_context(running_system("real", *flags, environment=environment))
        stack.enter_context(controller_manager(system, assets, folder, CONTROLLERS))
        dump = folder / "nodes.json"
        # kubectl names the kind of each item, the API server of the list.
        nodes = [{"kind": "Node", **each} for each in system.get("/api/v1/nodes")["items"]]
        dump.write_text(json.dumps({"items": nodes}))
        setup = ("kueue", "setup", "--cluster", str(dump), "-o", "json")
        plain = json.loads(hamictl(system.folder, *setup))
        names = ("--queue", CHECKED, "--cluster-queue", CHECKED, "--check")
        checked = json.loads(hamictl(system.folder, *setup, *names))
        stack.enter_context(
            running_kueue(
                folder / "kueue",
                found=found,
                api=system.api,
                kubeconfig=str(system.described["kubeconfig"]),
                configuration=plain["configuration"],
            )
        )
        for item in plain["objects"]:
            create_object(system, item)
        for item in checked["objects"]:
            if item["kind"] == "ClusterQueue":
                for flavor in item["spec"]["resourceGroups"][0]["flavors"]:
                    for each in flavor["resources"]:
                        each["nominalQuota"] = "100000000"
            if item["kind"] != "ResourceFlavor":
                create_object(system, item)
        yield system


def create_object(system: System, item: Json) -> None:
    """Create an object of Kueue's; right after its start its webhooks may not answer yet."""

    def try_create() -> bool:
        answer = system.api.post(COLLECTIONS[item["kind"]], json=item)
        assert answer.status_code in (201, 500), answer.text
        return answer.status_code == 201

    wait(try_create, f"{item['kind']} to be created")


@pytest.fixture(scope="session")
def running_queue(
    kueue_folder: KueueFolder,
    kubernetes_assets: Assets,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[System]:
    """Two nodes with two cards each, behind a queue."""
    folder = tmp_path_factory.mktemp("queue")
    with queued_system(
        folder, kubernetes_assets, kueue_folder, "--nodes", "2", "--gpus", "2"
    ) as system:
        yield system


@pytest.fixture
def queued(running_queue: System) -> Iterator[System]:
    """The session's system; without Jobs before and after."""
    yield running_queue
    running_queue.check_invariants()
    delete_jobs(running_queue)
