"""Pods without cards where kube-scheduler asks our scheduler for scores of nodes."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from hamicommon.k8s.types import Json

from tests.e2e.conftest import running_system
from tests.e2e.system import System, a_pod, wait

CORES = 8
FLAGS = ("--gpus", "1", "--score-pods-without-cards", "--kubelet-flag", f"--cpu={CORES}")
WHOLE_CARD = {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 100}


def with_card(name: str, cores: int) -> Json:
    return a_pod(name, WHOLE_CARD | {"cpu": cores})


def without_cards(name: str, cores: int) -> Json:
    return a_pod(name, {"cpu": cores})


def place_pod(system: System, pod: Json) -> str:
    """Create the pod; return the node that it is bound to."""
    name = pod["metadata"]["name"]
    answer = system.create(pod)
    assert answer.status_code == 201, answer.text

    def node() -> str | None:
        return ((system.pod(name) or {}).get("spec") or {}).get("nodeName")

    return str(wait(node, f"{name} to be placed", why=lambda: str(system.events(name))))


def scores(system: System, pod: Json) -> dict[str, int]:
    """Return our scheduler's scores, asked as kube-scheduler asks."""
    asked = {"pod": pod, "nodenames": ["node-0", "node-1", "node-2"]}
    answer = httpx.post(f"{system.scheduler_url}/prioritize-without-cards", json=asked)
    return {one["Host"]: one["Score"] for one in answer.json()}


@contextmanager
def stop_service(system: System, service: str) -> Iterator[None]:
    """Within the block the process takes connections and answers nothing."""
    pid = system.pid_of(service)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_they_leave_the_cpu_beside_idle_cards_alone_and_go_on_while_nobody_answers(
    cluster_kind: str,
) -> None:
    with running_system(cluster_kind, *FLAGS) as system:
        # The card of the first node is taken and most of its CPU is left; of the second both are
        # taken; the third is idle, so that kube-scheduler itself would take it.
        assert place_pod(system, with_card("modest", 1)) == "node-0"
        assert place_pod(system, with_card("hungry-1", 7)) == "node-1"
        plain = [without_cards(f"plain-{number}", 3) for number in (1, 2)]
        wait(
            lambda: scores(system, plain[0]).get("node-2") == 0,
            "the usual pods to be known",
            why=lambda: str(scores(system, plain[0])),
        )

        assert [place_pod(system, pod) for pod in plain] == ["node-0", "node-0"]

        with stop_service(system, "scheduler"):
            # By kube-scheduler's own scores, the emptiest node.
            assert place_pod(system, without_cards("plain-3", 1)) == "node-2"

        assert place_pod(system, with_card("hungry-2", 7)) == "node-2"
        system.wait_for_phase("hungry-2", "Running")
        system.check_invariants()
