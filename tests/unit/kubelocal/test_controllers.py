"""Which pods a workload still needs, and which it has too many of."""

from typing import Any

from kubelocal.controllers import KINDS, WorkloadKind, owner_uid, plan

BY_NAME: dict[str, WorkloadKind] = {kind.name: kind for kind in KINDS}


def workload(name: str, **spec: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c"}]}}
    metadata = {"name": name, "namespace": "default", "uid": f"u-{name}"}
    return {"metadata": metadata, "spec": {"template": template, **spec}}


def start_pods(made: tuple[dict[str, Any], ...], phase: str = "Running") -> list[dict[str, Any]]:
    ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
    return [pod | {"status": {"phase": phase, "conditions": [ready]}} for pod in made]


def test_a_deployment_gets_the_pods_it_lacks() -> None:
    wanted = plan(BY_NAME["Deployment"], workload("web", replicas=2), [])

    assert len({pod["metadata"]["name"] for pod in wanted.create}) == 2
    assert all(owner_uid(pod) == "u-web" for pod in wanted.create)
    assert all(pod["metadata"]["labels"] == {"app": "web"} for pod in wanted.create)


def test_a_deployment_that_has_its_pods_needs_nothing_but_a_status() -> None:
    kind, web = BY_NAME["Deployment"], workload("web", replicas=2)
    pods = start_pods(plan(kind, web, []).create)

    wanted = plan(kind, web, pods)

    assert (wanted.create, wanted.delete) == ((), ())
    assert wanted.status == {"replicas": 2, "readyReplicas": 2, "availableReplicas": 2}
    assert plan(kind, web | {"status": dict(wanted.status)}, pods).status is None


def test_surplus_pods_go_those_that_are_not_ready_first() -> None:
    kind = BY_NAME["ReplicaSet"]
    made = plan(kind, workload("web", replicas=3), []).create
    pods = start_pods(made[:2]) + start_pods(made[2:], "Pending")

    wanted = plan(kind, workload("web", replicas=2), pods)

    assert wanted.delete == (made[2]["metadata"]["name"],)


def test_a_stateful_sets_pods_are_numbered_and_a_lost_one_comes_back() -> None:
    kind, db = BY_NAME["StatefulSet"], workload("db", replicas=3)
    pods = start_pods(plan(kind, db, []).create)

    again = plan(kind, db, [pods[0], pods[2]]).create

    assert [pod["metadata"]["name"] for pod in again] == ["db-1"]


def test_a_job_stops_when_its_completions_are_reached() -> None:
    kind, job = BY_NAME["Job"], workload("j", completions=2, parallelism=1)
    first = plan(kind, job, []).create

    done = start_pods(first, "Succeeded")
    second = plan(kind, job, done).create
    finished = plan(kind, job, done + start_pods(second, "Succeeded"))

    assert len(first) == len(second) == 1
    assert finished.create == ()
    assert finished.status == {"active": 0, "succeeded": 2, "failed": 0}


def test_a_job_gives_up_after_its_back_off_limit() -> None:
    kind, job = BY_NAME["Job"], workload("j", backoffLimit=0)

    failed = start_pods(plan(kind, job, []).create, "Failed")

    assert plan(kind, job, failed).create == ()


def test_a_workload_that_is_being_deleted_gets_no_pods() -> None:
    web = workload("web", replicas=1)
    web["metadata"]["deletionTimestamp"] = "2026-11-20T00:00:00Z"

    assert plan(BY_NAME["Deployment"], web, []).create == ()
