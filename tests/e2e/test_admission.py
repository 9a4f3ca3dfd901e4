"""Answers that a user reads when a pod is created on the running system, and by `hamictl lint`."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import yaml
from hamicommon.k8s.types import Json

from tests.e2e.system import System, a_pod, hamictl, slice_of, wait
from tests.faults.processes import take_down_service
from tests.waiting import PATIENCE_S

QUOTAS = "/api/v1/namespaces/default/resourcequotas"


def read_warnings(answer: httpx.Response) -> str:
    return " ".join(answer.headers.get_list("warning"))


def dry(system: System, pod: Json) -> httpx.Response:
    """Ask admission without storing anything."""
    return system.api.post("/api/v1/namespaces/default/pods?dryRun=All", json=pod)


def until(look: Callable[[], httpx.Response], arrived: Callable[[httpx.Response], bool]) -> None:
    """Repeat the request until its answer has the news that the bus brings a moment later."""

    def is_found() -> bool:
        return arrived(look())

    wait(is_found, "admission to know", why=lambda: f"{look().text} {look().headers}")


@pytest.fixture
def quota(system: System) -> Iterator[None]:
    hard = {"limits.nvidia.com/gpumem": "5000"}
    body = {"metadata": {"name": "cards"}, "spec": {"hard": hard}}
    assert system.api.post(QUOTAS, json=body).status_code == 201
    yield
    system.api.delete(f"{QUOTAS}/cards")
    # Later cases shall not meet it.
    pod = a_pod("free", slice_of(6000))
    until(lambda: dry(system, pod), lambda answer: answer.status_code == 201)


@pytest.mark.usefixtures("quota")
def test_a_pod_beyond_its_quota_is_denied_when_it_is_created(system: System) -> None:
    two = a_pod("two", slice_of(3000, count=2))

    until(lambda: dry(system, two), lambda answer: answer.status_code == 403)
    message = system.create(two).json()["message"]

    assert "exceeding resource quota: namespace default has 5000 of its quota of 5000" in message
    assert "1000 MiB short" in message
    assert dry(system, a_pod("one", slice_of(5000))).status_code == 201


def test_a_refusal_of_what_no_card_can_take_names_what_would_fit(system: System) -> None:
    pod = a_pod("huge", slice_of(100_000))
    until(lambda: dry(system, pod), lambda answer: "no node can take" in read_warnings(answer))

    answer = dry(system, pod)
    assert answer.status_code == 201
    assert "the largest has 81920 MiB" in read_warnings(answer)
    assert "fits if nvidia.com/gpumem <= 81920 MiB" in read_warnings(answer)


def test_a_near_miss_is_asked_about_though_the_pod_asks_for_nothing_of_ours(
    system: System,
) -> None:
    answer = dry(system, a_pod("slip", {"nvidia.com/gpumemory": "3000"}))

    assert answer.status_code == 201
    assert "was nvidia.com/gpumem meant?" in read_warnings(answer)
    assert answer.json()["spec"]["schedulerName"] == "default-scheduler"


def ran(system: System, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "hamictl"), *arguments],
        env={"HAMI_FOLDER": str(system.folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_lint_asks_the_running_system(system: System, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(a_pod("huge", slice_of(100_000))))
    pod = a_pod("huge", slice_of(100_000))
    until(lambda: dry(system, pod), lambda answer: "no node can take" in read_warnings(answer))

    [answer] = json.loads(hamictl(system.folder, "lint", "--live", "-o", "json", "-f", str(file)))[
        "items"
    ]
    assert answer["allowed"] is True
    [warning] = answer["warnings"]
    assert "the largest has 81920 MiB" in warning
    assert hamictl(system.folder, "lint", "-f", str(file)).startswith("default/huge would be admi")

    file.write_text(yaml.safe_dump(a_pod("wrong", {"nvidia.com/gpu": -1})))
    refused = ran(system, "lint", "--live", "-f", str(file))
    assert refused.returncode == 6
    assert "default/wrong would be refused: " in refused.stdout
    unclassed = a_pod("unclassed", slice_of(1000))
    unclassed["spec"]["priorityClassName"] = "nonesuch"
    file.write_text(yaml.safe_dump(unclassed))
    refused = ran(system, "lint", "--live", "-f", str(file))
    assert refused.returncode == 6
    assert "no PriorityClass with name nonesuch was found" in refused.stdout
    assert system.pod("huge") is None

    assert system.create(pod).status_code == 201
    file.write_text(yaml.safe_dump(pod))
    assert ran(system, "lint", "--live", "-f", str(file)).stdout.count("no node can take") == 1
    system.delete("huge")


def test_apply_goes_on_after_a_refused_pod_and_prints_warnings(
    system: System, tmp_path: Path
) -> None:
    wrong, good = a_pod("wrong", {"nvidia.com/gpu": -1}), a_pod("good", slice_of(1000))
    good["metadata"]["annotations"] = {"nvidia.com/gpumem": "1000"}
    others = [
        {"kind": "Gateway", "apiVersion": "example.com/v1", "metadata": {"name": "g"}},
        {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}},
    ]
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all([wrong, good, *others]))

    done = ran(system, "apply", "-f", str(file))

    assert done.returncode == 1
    unknown = "gateway/g: the cluster does not know the kind Gateway of example.com/v1"
    assert unknown in done.stderr
    assert "configmap/c created" in done.stdout
    assert "pod/wrong: " in done.stderr
    assert "nvidia.com/gpu is -1" in done.stderr
    assert "Warning: annotation nvidia.com/gpumem '1000' is without effect" in done.stderr
    assert "pod/good created" in done.stdout
    assert system.pod("wrong") is None
    system.delete("good")


def test_admission_goes_on_without_postgres_redis_and_nats(system: System) -> None:
    asking = a_pod("later", slice_of(1000))
    with ExitStack() as stack:
        for server in ("postgres", "redis", "nats"):
            stack.enter_context(take_down_service(system, server))
            admitted = dry(system, asking)
            assert admitted.status_code == 201, admitted.text
            assert admitted.json()["spec"]["schedulerName"] == "hami-scheduler"
            refused = dry(system, a_pod("wrong", {"nvidia.com/gpu": -1}))
            assert "nvidia.com/gpu is -1" in refused.json()["message"]
        assert system.create(asking).status_code == 201
    # All are back: the pod admitted in the meantime gets its card.
    system.wait_for_phase("later", "Running", timeout_s=90)
    system.delete("later")
