"""A fault at every step of a pod's path: the pods run all the same, each with its own limits.

Each case makes one fault happen while pods of different sizes come, takes it away after a while,
and then asks the checker: invariants by SQL, ledger = pods, and what every container sees of its
card = what its pod asked for. An agent that dies inside Allocate costs that one pod: the kubelet
fails it for good (its controller makes another), and its slice must come back. The names of the
points are in `hamicommon.failpoints`; the numbers F6..F40 are the survey's fault points.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import pytest

from tests.e2e.system import MIB, Json, a_pod, slice_of, wait
from tests.faults.conftest import LINES, Faulty

pytestmark = pytest.mark.faults

SIZES_MIB = (1024, 2048, 3072, 4096)
RECOVERED_S = 30.0
"""Promise L2: after the last fault ledger = pods = node within this."""
FAULT_S = 4.0
"""How long a fault lasts that is not counted."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table in docs/reliability.md."""

    number: str
    """Of the fault point in the survey."""
    point: str
    """What is planned at it is put behind."""
    actions: tuple[str, ...]
    quick: tuple[str, ...] = ()
    """Actions that run in `make test` too."""


CASES = (
    Case("F6", "store.reserve.before", ("kill", "error*2", "delay:1*3")),
    Case("F7", "postgres.commit", ("kill", "error*2", "delay:1*3"), quick=("kill",)),
    Case("F8", "store.reserve.after", ("kill", "error*2", "delay:2*2"), quick=("kill", "error*2")),
    Case("F9", "store.live_of.after", ("error*2", "delay:1*3")),
    Case("F10", "store.reserve.before", ("twice*2",), quick=("twice*2",)),
    Case("F13", "store.advance.before", ("error*2", "kill", "delay:1*3", "twice*4")),
    Case("F13", "store.advance.after", ("error*2", "kill"), quick=("kill",)),
    Case("F19", "pods.annotate.before", ("error*2", "kill", "delay:1*3")),
    Case("F19", "pods.annotate.after", ("error*2", "kill")),
    Case("F39", "lock.acquire.before", ("error*2", "kill", "delay:1*3")),
    Case("F39", "lock.acquire.after", ("error*2", "kill", "delay:2*2"), quick=("kill",)),
    Case("F39", "lock.release.before", ("error*2", "kill", "twice*4")),
    Case("F40", "grants.granted.before", ("error*2", "kill", "delay:1*3", "twice*4")),
    Case("F40", "grants.granted.after", ("error*2", "kill")),
    Case("F15", "pods.bind.before", ("error*2", "kill", "delay:2*2")),
    Case("F15", "pods.bind.after", ("error*2", "kill", "delay:2*2"), quick=("kill", "error*2")),
    Case("F40", "bus.publish.before", ("error*3", "delay:1*6", "twice*9"), quick=("twice*9",)),
    Case("F40", "bus.publish.after", ("error*3", "kill")),
    Case("F26", "node_files.write_limits.before", ("kill", "delay:1*2")),
    Case("F26", "node_files.write_limits.after", ("kill",), quick=("kill",)),
    Case("F26", "node_state.save.before", ("kill", "delay:1*2")),
    Case("F26", "node_state.save.after", ("kill",)),
    Case("F40", "node_bus.publish.before", ("error*4", "kill", "twice*6", "delay:1*4")),
    Case("F40", "node_bus.publish.after", ("error*4", "kill")),
    Case("F24", "node_books.holdings.before", ("error*2", "delay:1*3")),
)


def rows() -> list[object]:
    """Every case with every action; those that are not quick carry the mark `slow`."""
    return [
        pytest.param(
            case,
            action,
            id=f"{case.number}-{case.point}={action}",
            marks=() if action in case.quick else pytest.mark.slow,
        )
        for case in CASES
        for action in case.actions
    ]


@pytest.mark.parametrize(("case", "action"), rows())
def test_pods_run_with_their_own_limits(faulty: Faulty, case: Case, action: str) -> None:
    system = faulty.system
    faulty.plan(f"{case.point}={action}")
    began_s = time.monotonic()

    names = []
    for number, memory_mib in enumerate(SIZES_MIB):
        pod = a_pod(f"pod-{number}", slice_of(memory_mib, 5), command=("vgpu-probe", "--no-launch"))
        assert system.create(pod).status_code == 201
        names.append(pod["metadata"]["name"])
    deadline = began_s + FAULT_S
    wait(lambda: time.monotonic() > deadline or _settled(system.pods()), "the fault to pass")
    faulty.plan()
    cleared_s = time.monotonic()
    wait(
        lambda: _settled(system.pods()) and system.converged() is None,
        "every pod to run, and the ledger to say so",
        timeout_s=RECOVERED_S,
        why=lambda: f"{system.converged()} {_phases(system.pods())}",
    )
    recovered_s = max(0.0, time.monotonic() - cleared_s)

    system.check_invariants()
    lost = [pod["metadata"]["name"] for pod in system.pods() if _refused_by_kubelet(pod)]
    may_be_lost = 1 if case.point.startswith("node_") and action == "kill" else 0
    assert len(lost) <= may_be_lost, _phases(system.pods())
    for name, memory_mib in zip(names, SIZES_MIB, strict=True):
        found = system.pod(name)
        assert found is not None
        if name in lost:
            continue
        lines = system.wait_for_log(found, "cuda", "running")
        seen = [line["total_bytes"] // MIB for line in lines if line["event"] == "device"]
        assert seen == [memory_mib], f"{name} sees {seen} MiB, asked for {memory_mib}"
    LINES.append(
        f"{case.number:4} {case.point}={action}: ran {time.monotonic() - began_s:.1f} s, "
        f"recovered {recovered_s:.1f} s after the fault"
        + (", one pod refused by the kubelet" if lost else "")
    )


def _settled(pods: list[Json]) -> bool:
    return all(pod["status"].get("phase") == "Running" or _refused_by_kubelet(pod) for pod in pods)


def _refused_by_kubelet(pod: Json) -> bool:
    status = pod["status"]
    return (status.get("phase"), status.get("reason")) == ("Failed", "UnexpectedAdmissionError")


def _phases(pods: list[Json]) -> str:
    return json.dumps({pod["metadata"]["name"]: pod["status"] for pod in pods})
