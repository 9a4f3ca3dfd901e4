"""FAULT-35..38, -40..43: Postgres, Redis, NATS, metrics, and the network between node and core.

A server is killed, and the supervisor starts it again; or it is stopped, and then does not answer,
like a server with a slow disk, a lost route or a paused machine.
"""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest
from hamicommon.k8s.types import Json

from tests.e2e.system import System, wait
from tests.faults.nodes.node import (
    NODE,
)
from tests.faults.processes import (
    kill,
    kill_services,
    programs_of,
    replica,
    suspend_service,
    wait_until_back,
)
from tests.faults.replicas.extender import CALL_TIMEOUT_S
from tests.faults.stage import Faulty, Stage, is_running, since

pytestmark = pytest.mark.row(promise="SAFE-1..3 SAFE-6 LIVE-2")


async def bind_all(url: str, pods: Sequence[Json]) -> list[tuple[str, float]]:
    """(the error, seconds until it came) of each call, all made concurrently."""
    async with httpx.AsyncClient(timeout=CALL_TIMEOUT_S) as client:

        async def ask(pod: Json) -> tuple[str, float]:
            began_s = time.monotonic()
            metadata = pod["metadata"]
            body = {
                "podName": metadata["name"],
                "podNamespace": metadata["namespace"],
                "podUID": metadata["uid"],
                "node": "node-0",
            }
            answer = await client.post(f"{url}/bind", json=body)
            assert answer.status_code == 200
            return str(answer.json()["Error"]), since(began_s)

        return list(await asyncio.gather(*(ask(pod) for pod in pods)))


@contextmanager
def lock_table(system: System, table: str) -> Iterator[None]:
    """Lock the table against writes, but not against reads."""

    async def begin(dsn: str) -> asyncpg.Connection:
        connection = await asyncpg.connect(dsn)
        await connection.execute(f"BEGIN; LOCK TABLE {table} IN EXCLUSIVE MODE")
        return connection

    with asyncio.Runner() as runner:
        connection = runner.run(begin(str(system.described["postgres_dsn"])))
        try:
            yield
        finally:
            runner.run(connection.close())


@contextmanager
def no_new_connection(system: System) -> Iterator[None]:
    """Make Redis end all connections except ours, and accept no others."""
    client = system.redis()
    before = client.config_get("maxclients")["maxclients"]
    client.config_set("maxclients", 1)
    client.client_kill_filter(_type="normal", skipme=True)
    client.client_kill_filter(_type="pubsub", skipme=True)
    try:
        yield
    finally:
        client.config_set("maxclients", before)


@contextmanager
def every_connection(system: System) -> Iterator[None]:
    """Take all connections that Postgres gives."""
    dsn = str(system.described["postgres_dsn"])
    with asyncio.Runner() as runner:
        held = runner.run(_all_of(dsn))
        yield
        for connection in held:
            connection.terminate()


async def _all_of(dsn: str) -> list[asyncpg.Connection]:
    held = []
    while True:
        try:
            held.append(await asyncpg.connect(dsn))
        except asyncpg.TooManyConnectionsError:
            return held


NO_LOCKS = "/bind fails on nodes that need the lock, with that sentence; the others go on"
STOPPED_S = 5.0
CALLS = 30
"""Far more than one connection serves within the five seconds that a call waits for it."""


@pytest.mark.row(
    point="FAULT-35",
    fault="Postgres is killed under load and recovers its log",
    kind="kill",
    answer="a clear error in that time; exactly what was committed is there",
    promise="SAFE-1..3 SAFE-6 LIVE-2",
)
def test_f35_postgres_killed(faulty: Faulty, stage: Stage) -> None:
    stage.run_before(2)
    stage.come(2)
    with kill_services(faulty.system, "postgres"):
        stage.come(2)
    stage.recover()


@pytest.mark.slow
@pytest.mark.parametrize(
    "server",
    [
        pytest.param(
            "postgres",
            marks=pytest.mark.row(
                point="FAULT-36",
                fault="Postgres does not answer for 5 s",
                answer="decisions wait or fail with a clear error; running pods are untouched",
            ),
        ),
        pytest.param(
            "redis",
            marks=pytest.mark.row(
                point="FAULT-38",
                fault="Redis does not answer for 5 s",
                answer=NO_LOCKS,
            ),
        ),
    ],
)
@pytest.mark.row(kind="delay")
def test_stopped_server(faulty: Faulty, stage: Stage, server: str) -> None:
    stage.run_before(1)
    with suspend_service(faulty.system, server):
        stage.come(4)
        time.sleep(STOPPED_S)
    stage.recover()


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-36",
    fault="Postgres does not answer for 5 s while a batch waits",
    kind="delay",
    answer="written later, by the writer or the pod watch",
    promise="SAFE-1..3 SAFE-6 LIVE-1 LIVE-2",
)
def test_f36_postgres_goes_with_a_full_batch(faulty: Faulty, system: System, stage: Stage) -> None:
    stage.run_before(1)
    # The nodes' reports are late, so `bound` waits for them a while.
    faulty.plan("node_bus.publish.before=delay:3*16")
    stage.come(4)
    wait(
        lambda: sum("nodeName" in pod["spec"] for pod in stage.mine()) == 5,
        "every pod to be bound",
        why=lambda: str(stage.mine()),
    )
    binding = system.sql("SELECT count(*) FROM allocations WHERE state = 'binding'")
    with suspend_service(system, "postgres"):
        time.sleep(STOPPED_S)
    faulty.plan()

    assert int(binding) > 0, "no batch was waiting"
    stage.recover(more=f"{binding} pods waited in the batch")


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-37",
    fault="Postgres has no connection left, and the scheduler is started into that",
    kind="error",
    answer="it is not ready, with the reason, until there is one",
)
def test_f37_no_connection_left(system: System, stage: Stage) -> None:
    stage.run_before(1)
    with every_connection(system):
        old_pid = kill(system, "scheduler")
        stage.come(2)
        time.sleep(2.0)
        assert not any(is_running(pod) for pod in stage.mine()[1:])
    free_s = time.monotonic()
    wait_until_back(system, "scheduler", old_pid)
    stage.recover(since_s=free_s)


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-37",
    fault="a replica's only connection to Postgres is busy, and Redis takes no new one",
    kind="delay",
    answer="calls are answered with a sentence within their timeout; the next attempt succeeds",
)
def test_f37_own_pools_exhausted(system: System, stage: Stage, tmp_path: Path) -> None:
    """Lock the cards' table, which holds the connection of a grant until its time-out.

    Far more calls come than the connections serve.
    """
    stage.run_before(1)
    settings = {"HAMI_POSTGRES_POOL_MAX": "1", "HAMI_POSTGRES_CONNECT_TIMEOUT_S": "2"}
    with replica(system, tmp_path, **settings) as (url, _):
        with no_new_connection(system), lock_table(system, "devices"):
            stage.come(4)
            waiting = [pod for pod in stage.mine() if not is_running(pod)]
            answers = asyncio.run(bind_all(url, [waiting[n % 4] for n in range(CALLS)]))
        free_s = time.monotonic()
        stage.settle()

    errors = [error for error, _ in answers]
    assert all(errors), "a pod was bound to a card that nobody could write down"
    assert all(error.startswith("ledger:") for error in errors), set(errors)
    slowest_s = max(took_s for _, took_s in answers)
    assert slowest_s < CALL_TIMEOUT_S
    stage.check()
    stage.report(since(free_s), more=f"{CALLS} calls answered within {slowest_s:.1f} s")


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-38",
    fault="Redis loses all keys, again and again",
    kind="lose",
    answer="two pods may be between bind and Allocate; PreStartContainer checks each start",
    promise="SAFE-1..3 LIVE-2",
)
def test_f38_redis_flushed(faulty: Faulty, stage: Stage) -> None:
    redis = faulty.system.redis()
    over = threading.Event()

    def flush() -> None:
        while not over.wait(0.02):
            redis.flushall()

    flushing = threading.Thread(target=flush)
    flushing.start()
    try:
        stage.come(8)
        time.sleep(1.0)
    finally:
        over.set()
        flushing.join()
    stage.recover()


@pytest.mark.slow
@pytest.mark.parametrize(
    "server",
    [
        pytest.param(
            "redis",
            marks=pytest.mark.row(
                point="FAULT-38",
                fault="Redis is killed under load and comes back empty",
                answer=NO_LOCKS,
            ),
        ),
        pytest.param(
            "nats",
            marks=pytest.mark.row(
                point="FAULT-40",
                fault="NATS is killed under load",
                answer="facts wait in the outbox, reports on the nodes' disks",
            ),
        ),
        pytest.param(
            "metrics",
            marks=pytest.mark.row(
                point="FAULT-42",
                fault="the metrics service is killed under load",
                answer="usage is kept on the bus",
            ),
        ),
    ],
)
@pytest.mark.row(kind="kill")
def test_killed_server(faulty: Faulty, stage: Stage, server: str) -> None:
    stage.run_before(1)
    stage.come(3)
    with kill_services(faulty.system, server):
        stage.come(3)
    stage.recover()


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-41",
    fault="NATS does not answer while pods come",
    kind="delay",
    answer="pods are placed and run by the signed annotation",
    promise="SAFE-1..3 SAFE-6 LIVE-1 LIVE-2",
)
def test_f41_pods_run_while_nats_is_silent(system: System, stage: Stage) -> None:
    stage.run_before(1)
    with suspend_service(system, "nats"):
        stage.come(3)
        silent_s = time.monotonic()
        wait(
            lambda: sum(map(is_running, stage.mine())) == 4,
            "pods to run without the bus",
            timeout_s=18,
            why=lambda: str(stage.mine()),
        )
        ran_s = since(silent_s)
    stage.recover(more=f"three pods ran within {ran_s:.1f} s without the bus")


@pytest.mark.row(
    point="FAULT-43",
    fault="the node's agent and kubelet are cut off for seconds",
    kind="lose",
    answer="its pods run on; new ones wait or go elsewhere",
    promise="SAFE-1..3 LIVE-2",
)
@pytest.mark.slow
def test_f43_node_cut_off(system: System, stage: Stage) -> None:
    stage.run_before(2)
    with suspend_service(system, f"kubelet-{NODE}"), suspend_service(system, f"node-agent-{NODE}"):
        stage.come(3)
        time.sleep(STOPPED_S)
    stage.recover()


@pytest.mark.row(
    point="FAULT-43",
    fault="the node is cut off from API server, bus and ledger; a container restarts",
    kind="lose",
    answer="the agent's own records are enough for the check",
    promise="SAFE-2 SAFE-3 LIVE-2",
)
@pytest.mark.slow
@pytest.mark.emulator_only
def test_f43_core_cut_off(system: System, stage: Stage) -> None:
    stage.run_before(1, node=NODE)
    [pod] = stage.mine()
    before = set(programs_of(pod))
    with ExitStack() as cut:
        for server in ("apiserver", "nats", "postgres", "redis"):
            cut.enter_context(suspend_service(system, server))
        killed_s = time.monotonic()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait(lambda: set(programs_of(pod)) - before, "the container to run again", timeout_s=15)
        again_s = since(killed_s)
    stage.recover(restarted={"pod-0"}, more=f"ran again after {again_s:.1f} s, all alone")
