"""The ledger's primary dies under load and its synchronous standby takes over.

Real: both Postgres servers, their replication, two scheduler processes, Redis, NATS, an API server.
"""

import asyncio
import itertools
import time
from dataclasses import dataclass, field

import pytest
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.system import INVARIANTS
from tests.faults.replicas.extender import Caller, Service, calling
from tests.faults.replicas.replicas import Cluster, cluster
from tests.faults.stage import MEASURED
from tests.waiting import PATIENCE_S

CALLERS = 4
INTERVAL_S = 0.2
"""Each caller asks so often: 20 decisions a second."""
SECONDS = 12.0
FAIL_AFTER_S = 4.0
RETRY_INTERVAL_S = 0.5
"""kube-scheduler's own back-off is a second; a shorter one is harder on the services."""
SEED = 20_261


@dataclass(slots=True)
class Acknowledged:
    """Answers of /bind that callers rely on."""

    node_of: dict[str, str] = field(default_factory=dict)
    """By pod uid, the node where /bind was answered without an error."""
    answered_s: list[float] = field(default_factory=list)
    errors: set[str] = field(default_factory=set)

    async def run(self, caller: Caller, pods: list[Json], nodes: list[str], began_s: float) -> None:
        """One pod after the other, each until it is bound, as kube-scheduler would."""
        for number, pod in enumerate(pods):
            await asyncio.sleep(began_s + number * INTERVAL_S - time.monotonic())
            while not await self._once(caller, pod, nodes):
                await asyncio.sleep(RETRY_INTERVAL_S)

    async def _once(self, caller: Caller, pod: Json, nodes: list[str]) -> bool:
        answer = await caller.filter(pod, nodes)
        if not answer["NodeNames"]:
            self.errors.add(answer["Error"])
            return False
        [node] = answer["NodeNames"]
        error = await caller.bind(pod, node)
        if error:
            self.errors.add(error)
            return False
        self.node_of[pod["metadata"]["uid"]] = node
        self.answered_s.append(time.monotonic())
        return True

    @property
    def gap_s(self) -> float:
        """The longest time without a bound pod."""
        ordered = sorted(self.answered_s)
        return max(after - before for before, after in itertools.pairwise(ordered))


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-35",
    fault="Postgres' primary is killed under 20 decisions/s, its synchronous standby is promoted",
    kind="kill",
    answer="decisions wait or fail with a clear error; no acknowledged grant is lost",
    promise="SAFE-1..3 SAFE-6 LIVE-2",
)
async def test_f35_no_acknowledged_grant_is_lost_when_the_standby_takes_over(
    request: pytest.FixtureRequest,
) -> None:
    async with cluster(replicas=2, nodes=8, cards=8, slots=10, standby=True) as system:
        assert system.postgres is not None
        count = int(SECONDS / INTERVAL_S)
        pods = await system.pods("default", CALLERS * count, memory_mib=1024)
        promised = Acknowledged()
        with calling(Service(system.ports, seed=SEED), CALLERS) as callers:
            began_s = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                for number, caller in enumerate(callers):
                    mine = pods[number * count : (number + 1) * count]
                    start_s = began_s + number * INTERVAL_S / CALLERS
                    tasks.create_task(promised.run(caller, mine, system.nodes, start_s))
                await asyncio.sleep(FAIL_AFTER_S)
                before = len(promised.node_of)
                took_s = await asyncio.to_thread(system.postgres.fail_over)

        assert len(promised.node_of) == len(pods)
        await _until_allocated(system, len(pods))
        rows = await system.sql(
            "SELECT pod_uid || ' ' || node FROM allocations WHERE ended_at IS NULL"
        )
        assert set(rows.splitlines()) == {f"{uid} {at}" for uid, at in promised.node_of.items()}
        for name, query in INVARIANTS.items():
            assert await system.sql(query) == "", name
        MEASURED[request.node.name] = promised.gap_s
        measured.note(
            f"FAULT-35 primary killed after {before} of {len(pods)} pods at 20/s, standby promoted "
            f"in {took_s:.1f} s: longest gap between bound pods {promised.gap_s:.1f} s, 0 "
            f"acknowledged grants lost; {len(promised.errors)} kinds of error: "
            + "; ".join(sorted(promised.errors))[:300]
        )


async def _until_allocated(system: Cluster, count: int) -> None:
    query = "SELECT count(*) FROM allocations WHERE state = 'allocated'"
    async with asyncio.timeout(PATIENCE_S):
        while await system.sql(query) != str(count):
            await asyncio.sleep(0.2)
