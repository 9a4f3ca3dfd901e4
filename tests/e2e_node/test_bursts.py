"""Many concurrent pods on a real kubelet: each starts with its own limits, on its own cards."""

import json
import random
import time

import pytest
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.system import slice_of, wait
from tests.e2e_node.node_system import CARDS, NodeSystem

BURST = 20
BURST_TIMEOUT_S = 180.0
WAVES = 3
ALL_GONE_S = 400.0
"""A kubelet of 1.20 takes the containers of a full node away one by one."""
WAVE = 17
"""Pods of one wave, below the node's 20 slots: the bypassing pods find some too."""
BYPASSING = 2
SEED = 3096


def test_twenty_pods_at_once_are_each_held_to_their_own_slice(system: NodeSystem) -> None:
    wanted = {f"burst-{number}": 1000 + 100 * number for number in range(BURST)}
    began_s = time.monotonic()
    for name, memory_mib in wanted.items():
        assert system.create(system.pod_like(name, slice_of(memory_mib, 10))).status_code == 201
    pods = [system.wait_for_phase(name, "Running", timeout_s=BURST_TIMEOUT_S) for name in wanted]
    took_s = time.monotonic() - began_s

    seen = {pod["metadata"]["name"]: system.seen_mib(pod) for pod in pods}

    wrong = {name: mib for name, mib in seen.items() if mib != [wanted[name]]}
    measured.note(
        f"{BURST} pods at once: all Running after {took_s:.1f} s, {len(wrong)} wrong limits"
    )
    assert wrong == {}
    assert system.sql("SELECT DISTINCT used_slots FROM devices") == "10"


def test_twenty_pods_of_one_template_get_the_cards_that_they_were_granted(
    system: NodeSystem,
) -> None:
    """They differ only in the card; none gets another one's answer under the node lock."""
    names = [f"template-{number}" for number in range(BURST)]
    before = len(system.agent.log)
    began_s = time.monotonic()
    for name in names:
        assert system.create(system.pod_like(name, slice_of(2000, 10))).status_code == 201
    pods = [system.wait_for_phase(name, "Running", timeout_s=BURST_TIMEOUT_S) for name in names]
    took_s = time.monotonic() - began_s

    wrong = [each for pod in pods for each in system.wrong_slice(pod, 2000, core_percent=10)]
    lines = [json.loads(line) for line in system.agent.log[before:].splitlines()]
    refused = [line for line in lines if "Refusing the start" in line["message"]]
    measured.note(
        f"{BURST} pods of one template on {CARDS} cards: all Running after {took_s:.1f} s, "
        f"{len(refused)} with another one's answer, {len(wrong)} wrong limits"
    )
    assert wrong == []
    assert system.sql("SELECT DISTINCT used_slots FROM devices") == "10"
    assert refused == []
    system.check_invariants()


@pytest.mark.slow
def test_fifty_pods_of_different_sizes_start_with_their_own_limits(system: NodeSystem) -> None:
    """In waves as large as the node; pods past the scheduler come in between, in any order."""
    chance = random.Random(SEED)
    wrong: list[str] = []
    replaced = 0
    began_s = time.monotonic()
    for wave in range(WAVES):
        wanted = {f"crowd-{wave}-{n}": 500 + chance.randrange(4000) for n in range(WAVE)}
        bypassing = [f"bypassing-{wave}-{n}" for n in range(BYPASSING)]
        names = [*wanted, *bypassing]
        chance.shuffle(names)
        for name in names:
            pod = system.pod_like(name, slice_of(wanted.get(name, 1), 5))
            if name in bypassing:
                pod["spec"] |= {"nodeName": system.node.name, "schedulerName": "somebody-else"}
            assert system.create(pod).status_code == 201
        for name, memory_mib in wanted.items():
            pod, made_again = _running(system, name, memory_mib)
            replaced += made_again
            wrong += system.wrong_slice(pod, memory_mib, core_percent=5)
        for name in bypassing:
            status = (system.pod(name) or {"status": {}})["status"]
            started = [s for s in status.get("containerStatuses") or [] if s.get("containerID")]
            assert not started, f"{name} bypassed the scheduler and was started"
        system.check_invariants()
        system.delete(*names, timeout_s=ALL_GONE_S)
    measured.note(
        f"{WAVES * WAVE} pods of different sizes and {WAVES * BYPASSING} past the scheduler in "
        f"{time.monotonic() - began_s:.0f} s: every container compared with its row, "
        f"{replaced} refused or ended and made again, {len(wrong)} with another's limits"
    )
    assert wrong == []
    assert replaced <= WAVES * BYPASSING


def _running(system: NodeSystem, name: str, memory_mib: int) -> tuple[Json, int]:
    """The pod once it runs, and how often it was made again, as a controller does.

    A pod that bypasses the scheduler may take its answer: then its kubelet refuses it.
    """
    made_again = 0

    def run() -> Json | None:
        nonlocal made_again
        pod = system.pod(name)
        phase = "" if pod is None else pod["status"].get("phase")
        if phase == "Running":
            return pod
        if pod is None or phase == "Failed":
            made_again += 1
            system.delete(name)
            again = system.pod_like(name, slice_of(memory_mib, 5))
            assert system.create(again).status_code == 201
        return None

    return wait(run, f"{name} to run", timeout_s=BURST_TIMEOUT_S), made_again
