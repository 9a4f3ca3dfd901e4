"""Slices bound late, by CDI: bursts of pods of random sizes on one node that admits in any order.

Each container prints which limits it has. The long run compares the two ways.
"""

import random
import time

import pytest

from tests import measured
from tests.e2e.conftest import SHUFFLED, running_system
from tests.e2e.system import MIB, System, a_pod, slice_of, wait

CARDS = 10
BURST = 80
TIMEOUT_S = 180.0
PRINT_LIMITS = (
    "sh",
    "-c",
    'printf \'{"event": "limits", "bytes": %s, "variable": "%s"}\\n\' '
    "`sed -n 's/.*memory_bytes \\([0-9]*\\).*/\\1/p' /etc/hami/limits` "
    '"$CUDA_DEVICE_MEMORY_LIMIT_0"',
)


def test_a_burst_on_one_node_starts_with_its_own_limits_in_any_order(crowded: System) -> None:
    assert _bursts(crowded, "late", pods=40) == []


@pytest.mark.slow
@pytest.mark.parametrize("binding", ["late", "lock"])
def test_a_thousand_pods_in_bursts_start_with_their_own_limits(
    cluster_kind: str, binding: str
) -> None:
    flags = ("--nodes", "1", "--gpus", str(CARDS), "--binding", binding, *SHUFFLED)
    with running_system(cluster_kind, *flags) as system:
        assert _bursts(system, binding, pods=1000) == []
        system.check_invariants()


def _bursts(system: System, binding: str, *, pods: int) -> list[str]:
    """Pods that had another's limits."""
    sizes = random.Random(7)
    wrong: list[str] = []
    spent_s = 0.0
    for start in range(0, pods, BURST):
        wanted = {
            f"p{number}": sizes.randrange(64, 8192)
            for number in range(start, min(start + BURST, pods))
        }
        began_s = time.monotonic()
        for name, memory_mib in wanted.items():
            pod = a_pod(name, slice_of(memory_mib), command=PRINT_LIMITS)
            pod["spec"]["restartPolicy"] = "Never"
            assert system.create(pod).status_code == 201
        _wait_until_over(system, len(wanted))
        spent_s += time.monotonic() - began_s
        wrong += _wrong(system, wanted)
        system.delete(*wanted)
    measured.note(
        f"binding {binding}: {pods} pods of random sizes in bursts of {BURST} on one node, "
        f"shuffled: {len(wrong)} with another's limits, {spent_s:.1f} s"
    )
    return wrong


def _wait_until_over(system: System, count: int) -> None:
    def over() -> bool:
        phases = [pod["status"].get("phase") for pod in system.pods()]
        assert "Failed" not in phases, [
            pod["status"] for pod in system.pods() if pod["status"].get("phase") == "Failed"
        ][:3]
        return phases.count("Succeeded") == count

    wait(over, "all pods to have printed their limits", timeout_s=TIMEOUT_S)


def _wrong(system: System, wanted: dict[str, int]) -> list[str]:
    wrong = []
    for pod in system.pods():
        name = pod["metadata"]["name"]
        [printed] = [line for line in system.log(pod, "cuda") if line["event"] == "limits"]
        right = printed["bytes"] == wanted[name] * MIB
        right &= printed["variable"] == f"{wanted[name]}m"
        if not right:
            wrong.append(f"{name}: {printed}, not {wanted[name]} MiB")
    return wrong
