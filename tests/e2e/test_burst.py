"""100 one-slice pods at once onto one node of ten cards."""

from __future__ import annotations

import time

import pytest

from tests.e2e.conftest import FIGURES, running_system
from tests.e2e.system import a_pod, slice_of, wait

pytestmark = pytest.mark.e2e

PODS = 100
TIMEOUT_S = 120.0


def test_a_hundred_pods_on_one_node_all_run(cluster_kind: str) -> None:
    with running_system(cluster_kind, "--nodes", "1", "--gpus", "10") as system:
        began_s = time.monotonic()
        for number in range(PODS):
            pod = a_pod(
                f"burst-{number}", slice_of(8192, 10), command=("vgpu-probe", "--no-launch")
            )
            assert system.create(pod).status_code == 201
        created_s = time.monotonic() - began_s

        wait(
            lambda: sum(pod["status"].get("phase") == "Running" for pod in system.pods()) == PODS,
            "all pods to run",
            timeout_s=TIMEOUT_S,
            why=lambda: str(
                [
                    (pod["metadata"]["name"], pod["status"])
                    for pod in system.pods()
                    if pod["status"].get("phase") != "Running"
                ][:3]
            ),
        )

        FIGURES.append(
            f"{PODS} one-slice pods on one node of ten cards: created in {created_s:.1f} s,"
            f" all running after {time.monotonic() - began_s:.1f} s"
        )
        wait(
            lambda: system.converged() is None, "ledger = pods", why=lambda: str(system.converged())
        )
        system.check_invariants()
        assert system.sql("SELECT DISTINCT used_slots, used_memory_mib FROM devices") == "10|81920"
