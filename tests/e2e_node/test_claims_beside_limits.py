"""Pods by limits and pods by claims come and go at once, on the same cards, under kills.

Six places: three of pods by limits, three of pods by claims. In each round some of them change
hands: the old pod is deleted and the new one created without waiting, so more is asked for than a
card has. `--claim-rounds` is the number of rounds; a failure names the round's seed.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.system import slice_of, wait
from tests.e2e_node.claims import (
    CARD_MIB,
    CLAIMS,
    TEMPLATES,
    claiming_pod,
    descriptions,
    directories,
    start,
    template,
    wait_until_published,
)
from tests.e2e_node.node_system import NodeSystem
from tests.faults.processes import kill, wait_until_back

pytestmark = pytest.mark.e2e

PLACES = ("limits-0", "limits-1", "limits-2", "claim-0", "claim-1", "claim-2")
MOST_MIB = CARD_MIB // len(PLACES)
"""So all six fit on one card, however they are placed, once those before them are gone."""
CHANGES_HANDS = 0.7
"""The chance that a place does in a round."""
RECOVERED_S = 30.0
"""Promise LIVE-2, in seconds of a quiet machine."""


@dataclass(slots=True)
class Places:
    """Who holds them now, and what each asked for."""

    system: NodeSystem
    held: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """By place: the pod's name, MiB and percent of cores."""
    made: int = 0
    refused: int = 0
    """Pods by limits that their kubelet refused for good, because an agent died inside Allocate."""

    def change(self, place: str, memory_mib: int, cores: int) -> None:
        """The old pod goes and a new one comes, at the same time."""
        if place in self.held:
            self._delete(self.held[place][0])
        self.made += 1
        name = f"{place}-{self.made}"
        if place.startswith("limits"):
            pod = self.system.pod_like(name, slice_of(memory_mib, cores))
        else:
            template(self.system, name, {"memory": f"{memory_mib}Mi", "cores": str(cores)})
            pod = claiming_pod(self.system, name, made_from=name)
        wait(lambda: self.system.create(pod).status_code in (201, 409), f"{name} to be taken")
        self.held[place] = name, memory_mib, cores

    def _delete(self, name: str) -> None:
        self.system.api.request(
            "DELETE",
            f"/api/v1/namespaces/default/pods/{name}",
            json={"gracePeriodSeconds": 1},
        )
        self.system.api.delete(f"{TEMPLATES}/{name}")

    def again_if_refused(self) -> None:
        """As the controller of a workload does."""
        for place, (name, memory_mib, cores) in list(self.held.items()):
            pod = self.system.pod(name)
            if pod is not None and pod["status"].get("phase") == "Failed":
                assert place.startswith("limits"), pod["status"]
                self.refused += 1
                self.change(place, memory_mib, cores)

    def settled(self) -> bool:
        """Whether just the holders are there and run, and ledger = claims = pods."""
        self.again_if_refused()
        names = {name for name, _, _ in self.held.values()}
        pods = self.system.pods()
        return (
            {pod["metadata"]["name"] for pod in pods} == names
            and all(map(_runs, pods))
            and self.system.converged() is None
            and self.claimed_by_ledger() == self.claimed()
            and len(descriptions(self.system)) == len(self.claimed())
        )

    def claimed(self) -> set[str]:
        """The uids of the claims that there are, each allocated and held by a pod."""
        claims = self.system.get(CLAIMS)["items"]
        held = [c for c in claims if (c.get("status") or {}).get("reservedFor")]
        return {c["metadata"]["uid"] for c in (held if len(held) == len(claims) else ())}

    def claimed_by_ledger(self) -> set[str]:
        """Those on which live grants rest."""
        rows = self.system.sql(
            "SELECT e.detail FROM allocation_events e JOIN allocations a"
            " ON a.pod_uid = e.pod_uid AND e.sequence = 1"
            " WHERE a.ended_at IS NULL AND a.origin = 'claim'"
        )
        details = map(json.loads, rows.splitlines())
        return {claim["claim_uid"] for detail in details for claim in detail["claims"]}

    def check(self) -> None:
        """What each container can take is its own, and no card has more in all than it has."""
        taken: Counter[str] = Counter()
        for name, memory_mib, cores in self.held.values():
            pod = self.system.pod(name)
            assert pod is not None
            assert self.system.wrong_slice(pod, memory_mib, core_percent=cores) == []
            for card, (given_mib, _) in self.system.limits(pod).items():
                taken[card] += given_mib
        assert max(taken.values()) <= CARD_MIB, taken
        self.system.check_invariants()

    def why(self) -> str:
        """For the message of a round that does not settle."""
        phases = {p["metadata"]["name"]: p["status"].get("phase") for p in self.system.pods()}
        events = {name: self.system.events(name)[-2:] for name, _, _ in self.held.values()}
        return f"{phases}; {self.system.converged()}; {events}"


def _runs(pod: Json) -> bool:
    states = [s.get("state", {}) for s in pod["status"].get("containerStatuses") or ()]
    return pod["status"].get("phase") == "Running" and all("running" in s for s in states)


def _agent(system: NodeSystem) -> None:
    system.agent.kill()
    start(system)


def _scheduler(system: NodeSystem) -> None:
    wait_until_back(system, "scheduler", kill(system, "scheduler"))


def _kubelet(system: NodeSystem) -> None:
    system.node.restart_kubelet()
    wait_until_published(system)


def _kube_scheduler(system: NodeSystem) -> None:
    system.kube_scheduler.kill()
    system.kube_scheduler.start()


FAULTS: tuple[Callable[[NodeSystem], None], ...] = (_agent, _scheduler, _kubelet, _kube_scheduler)


@pytest.mark.timeout(0)
def test_claims_and_limits_come_and_go_under_kills_and_never_exceed_a_card(
    claiming: NodeSystem, controllers: None, claim_rounds: int
) -> None:
    del controllers
    system, slowest_s = claiming, 0.0
    places = Places(system)
    for number in range(claim_rounds):
        rng = random.Random(number)
        for place in rng.sample(PLACES, len(PLACES)):
            if place not in places.held or rng.random() < CHANGES_HANDS:
                places.change(place, rng.randrange(500, MOST_MIB), rng.choice((0, 5, 10, 15)))
        # Each fault in turn, in the middle of coming and going.
        FAULTS[number % len(FAULTS)](system)
        began_s = time.monotonic()
        wait(places.settled, f"round {number} to settle", why=places.why)
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        places.check()
    measured.note(
        f"{claim_rounds} rounds, {places.made} pods by limits and by claims under "
        f"{claim_rounds} kills: 0 wrong limits, no card exceeded, {places.refused} refused for "
        f"good by their kubelet; at the slowest settled {slowest_s:.1f} s after the fault "
        f"(promised on a quiet machine: {RECOVERED_S:g} s)"
    )

    for name, _, _ in places.held.values():
        system.api.delete(f"{TEMPLATES}/{name}")
    system.delete(*(name for name, _, _ in places.held.values()))
    wait(lambda: system.get(CLAIMS)["items"] == [], "the claims to go")
    wait(lambda: system.live_allocations() == 0, "the slices to be free")
    wait(lambda: not descriptions(system), "the device descriptions to go")
    wait(lambda: not directories(system), "the directories to go")
