"""kill -9 of any one process: within 30 s ledger = pods = node again, nothing granted twice."""

import os
import signal

import pytest

from tests.e2e.system import System, a_pod, slice_of, wait

CONVERGED_S = 30.0


@pytest.mark.parametrize(
    "service",
    [
        *("scheduler", "webhook", "metrics", "node-agent-node-0", "kubelet-node-0"),
        *("postgres", "redis", "nats", "apiserver", "kube-scheduler"),
    ],
)
def test_a_killed_process_loses_nothing(system: System, service: str, cluster_kind: str) -> None:
    if cluster_kind == "real" and service in ("apiserver", "kube-scheduler"):
        pytest.skip("the real control plane is not ours to restart")
    before = system.run(*(a_pod(f"before-{number}", slice_of(2000, 10)) for number in range(4)))
    pid = wait(lambda: system.pid_of(service), f"{service} to be ready")

    os.kill(pid, signal.SIGKILL)
    created = 0
    for number in range(4):
        try:
            created += system.create(a_pod(f"after-{number}", slice_of(2000, 10))).is_success
        except OSError:
            continue
        except Exception as exc:
            if type(exc).__module__.startswith("httpx"):
                continue
            raise
    wait(
        lambda: system.pid_of(service) not in (None, pid),
        f"{service} to be back",
        timeout_s=CONVERGED_S,
    )
    wait(
        lambda: (
            system.ledger_difference() is None
            and len([p for p in system.pods() if p["status"].get("phase") == "Running"])
            >= 4 + created
        ),
        "ledger = pods",
        timeout_s=CONVERGED_S,
        why=lambda: (
            str(system.ledger_difference())
            + str([(p["metadata"]["name"], p["status"].get("phase")) for p in system.pods()])
        ),
    )

    system.check_invariants()
    for pod in before:
        now = system.pod(pod["metadata"]["name"])
        assert now is not None
        assert now["metadata"]["uid"] == pod["metadata"]["uid"]
        assert [s["restartCount"] for s in now["status"]["containerStatuses"]] == [0]
