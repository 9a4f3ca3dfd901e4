"""Two replicas believe that they are active: the capacity is granted exactly.

Many concurrent callers play kube-scheduler, which is harder than the real one: it filters one pod
after the other. Scheduler processes, durable Postgres, Redis, NATS and an API server with all pods
are real. Agents and kubelets are played over the bus, so every winner is bound and reported
allocated.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hamicommon.k8s.types import Json

from bench.figures import percentile
from tests import measured
from tests.e2e.system import INVARIANTS
from tests.faults.replicas.extender import Caller, Service, calling
from tests.faults.replicas.replicas import Cluster, cluster
from tests.waiting import PATIENCE_S

SLICE_MIB = 16_384
SLOTS = 5
"""A card of 80 GiB holds five such slices: memory and slots run out together."""
CARDS = 10
TRIES = 20
"""A pod whose replica lost too many races is offered again, as by kube-scheduler."""
CALLERS = 8
SEED = 20_260


@dataclass(slots=True)
class Race:
    """Counts of the pods by their result."""

    granted: Counter[str] = field(default_factory=Counter)
    """By namespace."""
    bound: int = 0
    refused: int = 0
    again: int = 0
    """/filter answered that the pod is to be tried again."""
    gave_way: int = 0
    """/bind failed: another replica was first with what /filter had answered."""

    async def run(self, caller: Caller, pod: Json, nodes: list[str]) -> None:
        """One pod, until it is bound or refused."""
        for _ in range(TRIES):
            answer = await caller.filter(pod, nodes)
            if answer["NodeNames"]:
                [node] = answer["NodeNames"]
                if await caller.bind(pod, node):
                    self.gave_way += 1
                    continue
                self.granted[pod["metadata"]["namespace"]] += 1
                self.bound += 1
                return
            if not answer["Error"]:
                self.refused += 1
                return
            assert "tried again" in answer["Error"], answer["Error"]
            self.again += 1
        raise AssertionError(f"{pod['metadata']['name']} lost {TRIES} times")


@pytest.mark.parametrize(
    ("pods", "nodes"),
    [
        pytest.param(200, 1, id="200-pods-for-50-slices"),
        pytest.param(2000, 10, id="2000-pods-for-500-slices", marks=pytest.mark.slow),
    ],
)
async def test_a_stale_active_replica_beside_the_active_one_grants_nothing_twice(
    pods: int, nodes: int
) -> None:
    slices = nodes * CARDS * SLOTS
    quota = slices * 2 // 5
    async with cluster(replicas=2, nodes=nodes, cards=CARDS, slots=SLOTS) as system:
        await _limit(system, "team", quota * SLICE_MIB)
        mixed = [
            pod
            for pair in zip(
                await system.pods("team", pods // 2, memory_mib=SLICE_MIB),
                await system.pods("default", pods // 2, memory_mib=SLICE_MIB),
                strict=True,
            )
            for pod in pair
        ]
        race = Race()
        waiting = iter(mixed)

        async def work(caller: Caller) -> None:
            for pod in waiting:
                await race.run(caller, pod, system.nodes)

        with calling(Service(system.ports, seed=SEED), CALLERS) as callers:
            began_s = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                for caller in callers:
                    tasks.create_task(work(caller))
            took_s = time.monotonic() - began_s
        assert race.granted.total() == race.bound == slices, race
        await _until_allocated(system, slices)
        assert race.refused == pods - slices
        assert 0 < race.granted["team"] <= quota, race
        await _check(system, slices, quota)
        deadlocks = await system.sql(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
        assert deadlocks == "0"
        decisions = sum(len(caller.spent_s) for caller in callers)
        spent_ms = [1000 * spent_s for caller in callers for _, spent_s in caller.spent_s]
        measured.note(
            f"2 active replicas, binpack, {pods} pods for {slices} slices (quota {quota}): "
            f"{slices} granted and bound, {race.granted['team']} within the quota; "
            f"{decisions / took_s:.0f} decisions/s, p50 {statistics.median(spent_ms):.0f} ms, "
            f"p99 {percentile(spent_ms, 0.99):.0f} ms; {race.again} pods offered again, "
            f"{race.gave_way} bindings gave way, 0 deadlocks"
        )


async def _limit(system: Cluster, namespace: str, memory_mib: int) -> None:
    """A ResourceQuota that HAMi's way counts, known to the ledger."""
    await system.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    await system.api.create(
        f"/api/v1/namespaces/{namespace}/resourcequotas",
        {
            "metadata": {"name": "gpus"},
            "spec": {"hard": {"limits.nvidia.com/gpumem": str(memory_mib)}},
        },
    )
    async with asyncio.timeout(PATIENCE_S):
        while not await system.sql(
            f"SELECT 1 FROM quotas WHERE namespace = '{namespace}' AND limit_amount = {memory_mib}"
        ):
            await asyncio.sleep(0.1)


async def _until_allocated(system: Cluster, slices: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await system.sql("SELECT count(*) FROM allocations WHERE state = 'allocated'") != str(
            slices
        ):
            await asyncio.sleep(0.2)


async def _check(system: Cluster, slices: int, quota: int) -> None:
    """SAFE-1, SAFE-2, SAFE-4 and SAFE-6, and the ledger against the API server's bindings."""
    for name, query in INVARIANTS.items():
        assert await system.sql(query) == "", name
    held = await system.sql("SELECT sum(used_slots), sum(used_memory_mib) FROM devices")
    assert held == f"{slices}|{slices * SLICE_MIB}"
    over = "SELECT namespace FROM quotas WHERE used_amount > limit_amount"
    assert await system.sql(over) == "", "SAFE-4"
    team = await system.sql(
        "SELECT sum(x.memory_mib) FROM allocation_devices x JOIN allocations a ON a.id ="
        " x.allocation_id WHERE a.namespace = 'team' AND a.ended_at IS NULL"
    )
    assert int(team) <= quota * SLICE_MIB
    pods = (await system.api.get("/api/v1/pods"))["items"]
    bound = {
        f"{pod['metadata']['uid']} {pod['spec']['nodeName']}"
        for pod in pods
        if pod["spec"].get("nodeName")
    }
    rows = await system.sql("SELECT pod_uid || ' ' || node FROM allocations WHERE ended_at IS NULL")
    assert set(rows.splitlines()) == bound
