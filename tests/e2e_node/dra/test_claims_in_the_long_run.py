"""Hundreds of pods by limits and by claims on one card, while each granting process is killed."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Event

import pytest
from hamicommon.dra.devices import DRIVER
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.system import slice_of, wait
from tests.e2e_node.dra.claims import (
    CARD_MIB,
    CLAIMS,
    claim_of_card,
    claiming_pod,
    descriptions,
    devices,
    directories,
    forget,
    start,
)
from tests.e2e_node.node_system import NodeSystem
from tests.faults.processes import serving_pid, wait_until_back

pytestmark = pytest.mark.slow

SEED = 24
ROUNDS = 500
"""In each a pod comes, shows its slice and goes."""
WORKERS = {"limits": 3, "claim": 3}
ROUNDS_PER_KILL = 10
BATCH = 100
RUNS_S = 900.0
"""For one of many: beyond it something hangs."""


@dataclass(slots=True)
class Churn:
    """Six pods at a time on one card."""

    system: NodeSystem
    card: str
    over: Event = field(default_factory=Event)
    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        return self.seen["limits"] + self.seen["claim"]

    def goes_on(self, way: str, number: int) -> None:
        """One of the six."""
        chance = random.Random(f"{SEED} {way} {number}")
        turn = 0
        while not self.over.is_set():
            turn += 1
            self._round(way, f"{way}-{number}-{turn}", chance)

    def _round(self, way: str, name: str, chance: random.Random) -> None:
        memory_mib, cores = chance.randrange(500, CARD_MIB // 4), chance.randrange(1, 17)
        self.come(way, name, memory_mib, cores)
        if self.runs(name):
            pod = self.system.pod(name) or {}
            found = self.system.limits(pod)
            if found != {self.card: (memory_mib, cores)}:
                self.wrong.append(f"{name}: {found}, wanted {memory_mib} {cores}")
            self.seen[way] += 1
        else:
            # The kubelet asks a device plugin once, and fails a pod whose plugin was killed then.
            self.seen["failed at admission"] += 1
        self.system.delete(name, timeout_s=RUNS_S)
        if way == "claim":
            forget(self.system, name)

    def come(self, way: str, name: str, memory_mib: int, cores: int) -> None:
        """A pod, with its claim."""
        if way == "claim":
            amounts = {"memory": f"{memory_mib}Mi", "cores": str(cores)}
            claim_of_card(self.system, name, self.card, amounts)
            pod = claiming_pod(self.system, name)
        else:
            pod = self.system.pod_like(name, slice_of(memory_mib, cores))
            pod["metadata"]["annotations"] = {"nvidia.com/use-gpuuuid": self.card}
        made = self.system.create(pod)
        assert made.status_code == 201, made.text

    def runs(self, name: str) -> bool:
        """Wait; return False if the kubelet has refused the pod."""

        def phase() -> str:
            now = (self.system.pod(name) or {"status": {}})["status"]
            running = [s.get("state", {}) for s in now.get("containerStatuses") or [{}]]
            found = str(now.get("phase", ""))
            return found if found == "Failed" or "running" in running[0] else ""

        return wait(phase, f"{name} to run", timeout_s=RUNS_S) == "Running"

    def check(self) -> None:
        """Assert the conditions that hold at every moment."""
        self.system.check_invariants()
        most = self.system.sql(
            "SELECT max(s) FROM (SELECT sum(d.memory_mib) AS s FROM allocation_devices d"
            " JOIN allocations a ON a.id = d.allocation_id WHERE a.ended_at IS NULL"
            " GROUP BY d.device_uuid) x"
        )
        assert int(most or 0) <= CARD_MIB


def kills(system: NodeSystem) -> dict[str, Callable[[], None]]:
    """Return the processes to kill, by name; each comes back."""

    def agent() -> None:
        system.agent.kill()
        start(system)

    def scheduler() -> None:
        pid = serving_pid(system, "scheduler")
        os.kill(pid, signal.SIGKILL)
        wait_until_back(system, "scheduler", pid)

    def kube_scheduler() -> None:
        system.kube_scheduler.kill()
        system.kube_scheduler.start()

    return {
        "agent": agent,
        "scheduler": scheduler,
        "kube-scheduler": kube_scheduler,
        "kubelet": system.node.restart_kubelet,
    }


def test_limits_and_claims_come_and_go_on_one_card_while_all_is_killed(
    claiming: NodeSystem,
) -> None:
    system = claiming
    card = str(devices(system)[0]["attributes"]["uuid"]["string"])
    churn, done, chance = Churn(system, card), Counter[str](), random.Random(SEED)
    began = time.monotonic()
    with ThreadPoolExecutor(sum(WORKERS.values())) as pool:
        ways: list[Future[None]] = [
            pool.submit(churn.goes_on, way, number)
            for way, count in WORKERS.items()
            for number in range(count)
        ]
        try:
            for goal in range(ROUNDS_PER_KILL, ROUNDS + 1, ROUNDS_PER_KILL):
                wait(partial(_has_reached, churn, ways, goal), f"{goal} rounds", timeout_s=RUNS_S)
                name, kill = chance.choice(list(kills(system).items()))
                kill()
                done[name] += 1
                churn.check()
        finally:
            churn.over.set()
    spent_s = time.monotonic() - began
    _has_reached(churn, ways, ROUNDS)
    assert churn.wrong == []

    sizes = {f"{way}-last-{n}": way for way, count in WORKERS.items() for n in range(count)}
    for name, way in sizes.items():
        churn.come(way, name, 2048, 5)
    for kill in kills(system).values():
        kill()
    last = time.monotonic()
    for name in sizes:
        if not churn.runs(name):
            # Rejected while the device plugin was away: its workload makes another one.
            system.delete(name, timeout_s=RUNS_S)
            churn.come("limits", name, 2048, 5)
            assert churn.runs(name)
    wait(lambda: _differs(system) == "", "ledger = claims = pods", why=lambda: _differs(system))
    converged_s = time.monotonic() - last
    system.delete_all()
    for name, way in sizes.items():
        if way == "claim":
            forget(system, name)
    wait(lambda: not descriptions(system), "the device descriptions to go")
    wait(lambda: not directories(system), "the directories to go")
    measured.note(
        f"{churn.rounds} pods ({dict(churn.seen)}) on one card, {sum(done.values())} kills "
        f"({dict(done)}) in {spent_s:.0f} s: sums never above the card, 0 wrong limits; "
        f"ledger = claims = pods {converged_s:.0f} s after the last of four kills at once"
    )


def _has_reached(churn: Churn, ways: Sequence[Future[None]], goal: int) -> bool:
    """Return whether the goal is reached. Raises: the error that ended one of the six."""
    for way in ways:
        if way.done():
            way.result()
    return churn.rounds >= goal


def _differs(system: NodeSystem) -> str:
    """Describe a difference between ledger, claims and pods; empty if there is none."""
    different = system.ledger_difference()
    if different:
        return different
    held = {claim["metadata"]["name"] for claim in system.get(CLAIMS)["items"] if _is_held(claim)}
    granted = set(
        system.sql(
            "SELECT pod_name FROM allocations WHERE ended_at IS NULL AND origin = 'claim'"
        ).splitlines()
    )
    return "" if held == granted else f"claims of {held}, grants of {granted}"


def _is_held(claim: Json) -> bool:
    status = claim.get("status") or {}
    results = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    return bool(status.get("reservedFor")) and any(r["driver"] == DRIVER for r in results)


def test_a_hundred_claims_at_once_all_run_or_wait_and_none_leaks(claiming: NodeSystem) -> None:
    """More than the node has slots: those that wait come when others go."""
    system, chance = claiming, random.Random(SEED)
    names = [f"batch-{number}" for number in range(BATCH)]
    began = time.monotonic()
    for name in names:
        card = chance.choice(devices(system))["attributes"]["uuid"]["string"]
        claim_of_card(system, name, card, {"memory": f"{chance.randrange(500, 4000)}Mi"})
    for name in names:
        pod = claiming_pod(system, name)
        # Its one process ends as soon as it has taken its limit.
        pod["spec"]["containers"][0]["command"].append("--once")
        pod["spec"]["restartPolicy"] = "Never"
        assert system.create(pod).status_code == 201

    def release_what_is_over() -> int:
        """Release ended pods' claims as the claim controller does; return how many have ended."""
        over = 0
        for pod in system.pods():
            name = pod["metadata"]["name"]
            assert pod["status"].get("phase") != "Failed", pod["status"]
            if pod["status"].get("phase") == "Succeeded":
                over += 1
                if system.api.get(f"{CLAIMS}/{name}").status_code == 200:
                    forget(system, name)
        return over

    wait(lambda: release_what_is_over() == BATCH, "all to have run", timeout_s=RUNS_S)
    spent_s = time.monotonic() - began
    system.check_invariants()
    grants = system.sql(
        "SELECT count(*), count(DISTINCT pod_uid) FROM allocations WHERE pod_name LIKE 'batch-%'"
    )
    assert grants == f"{BATCH}|{BATCH}"
    wait(lambda: system.live_allocations() == 0, "the slices to be free")
    system.delete_all()
    wait(lambda: not descriptions(system), "the device descriptions to go")
    wait(lambda: not directories(system), "the directories to go")
    measured.note(f"{BATCH} claims at once on a node of 20 slots: all ran in {spent_s:.0f} s")
