"""The servers of one size, and the scheduler that is started on them, twice.

First on an empty ledger, for what a new cluster costs; then on a full one (grants of pods that
run), as every restart finds it. The API server is the emulated one: what it takes to list is in the
time to ready, and `Start.missing_s` parts it from the ledger's.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from hamicommon.ledger.migrations import upgrade
from hamicommon.settings import PostgresSettings
from hamilocal.servers.data import nats, postgres, valkey
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import free_port
from hamilocal.system.layout import LocalCredentials, ensure_credentials
from pydantic import SecretStr

from bench.filter.cluster import Fill, Placed, write_allocations
from bench.filter.objects import CARDS
from bench.filter.system import CHILD, ROOT, stop
from tests.processes import running

POLL_S = 0.05
READY_S = 900.0
"""A machine that is busy with other things lists 80,000 pods for minutes."""
HELD = Fill(title="one slice per card", pods_per_node=CARDS, memory_mib=16_384, core_percent=20)
"""Fill with as many placed pods as cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Servers that run all the time."""

    folder: Path
    dsn: str
    redis_url: str
    nats_url: str
    nats_monitor: str
    postgres_pid: int
    nats_pid: int
    made: LocalCredentials


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A scheduler that has become ready."""

    port: int
    pid: int
    ready_s: float
    """From the start of the process."""
    missing_s: dict[str, float]
    """Until when each thing was missing that it waited for."""


@contextmanager
def servers() -> Iterator[Servers]:
    """Durable Postgres with the schema, Redis, NATS."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hami-bench-")))
        folder.chmod(0o755)

        def start(plan: ServerPlan) -> Any:
            return stack.enter_context(running(plan, die_with_parent=True)).value

        database = start(postgres.prepare(folder / "postgres", durable=True))
        locks = start(valkey.prepare(folder / "redis"))
        plan, monitor = nats.prepare(folder / "nats"), free_port()
        config = folder / "nats" / "nats.conf"
        config.write_text(
            json.dumps({**json.loads(config.read_text()), "http": f"127.0.0.1:{monitor}"})
        )
        bus = start(plan)
        upgrade.upgrade(PostgresSettings(dsn=SecretStr(database.url)), ROOT / "migrations")
        yield Servers(
            folder=folder,
            dsn=database.url,
            redis_url=locks.url,
            nats_url=bus.url,
            nats_monitor=f"http://127.0.0.1:{monitor}",
            postgres_pid=database.process.pid,
            nats_pid=bus.process.pid,
            made=ensure_credentials(folder / "credentials", serving=("apiserver",)),
        )


@contextmanager
def scheduler(found: Servers, kubeconfig: Path, log: Path) -> Iterator[Start]:
    """A scheduler process, ready. Raises: SystemExit with its log when it does not become so."""
    port = free_port()
    env = {
        **os.environ,
        "HAMI_POSTGRES_DSN": found.dsn,
        "HAMI_REDIS_URL": found.redis_url,
        "HAMI_NATS_URL": found.nats_url,
        "KUBECONFIG": str(kubeconfig),
        "HAMI_TELEMETRY_TRACES_FILE": str(log.with_suffix(".traces.jsonl")),
        "HAMI_SCHEDULER_GRANT_KEY_FILE": str(found.made.grant_key),
        "HAMI_SCHEDULER_HTTP_BIND": f"127.0.0.1:{port}",
        # Binpack would send every pod of the bench through one node's lock.
        "HAMI_SCHEDULER_NODE_SCHEDULER_POLICY": "spread",
    }
    with log.open("w") as output:
        began_s = time.monotonic()
        process = subprocess.Popen(
            [*CHILD, sys.executable, "-m", "hami_scheduler"], env=env, stdout=output, stderr=output
        )
    try:
        missing_s = _until_ready(f"http://127.0.0.1:{port}/readyz", process, began_s, log)
        yield Start(
            port=port,
            pid=process.pid,
            ready_s=round(time.monotonic() - began_s, 2),
            missing_s=missing_s,
        )
    finally:
        stop(process)


def _until_ready(
    url: str, process: subprocess.Popen[bytes], began_s: float, log: Path
) -> dict[str, float]:
    missing_s: dict[str, float] = {}
    with httpx.Client(timeout=READY_S) as client:
        while time.monotonic() < began_s + READY_S and process.poll() is None:
            try:
                answer = client.get(url)
            except httpx.HTTPError:
                time.sleep(POLL_S)
                continue
            now_s = round(time.monotonic() - began_s, 2)
            missing_s.setdefault("listening", now_s)
            if answer.status_code == 200:
                return missing_s
            missing_s |= dict.fromkeys(answer.json()["missing"], now_s)
            time.sleep(POLL_S)
    raise SystemExit(f"the scheduler did not become ready:\n{log.read_text()[-4000:]}")


async def cards_known(dsn: str) -> int:
    """Cards in the ledger."""
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval("SELECT count(*) FROM devices WHERE present"))
    finally:
        await connection.close()


async def grant_placed(dsn: str, placed: list[Placed]) -> None:
    """Grants of the pods that run, on cards that are known."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await write_allocations(connection, HELD, placed)
            await connection.execute(
                "UPDATE devices d SET used_slots = h.slots, used_memory_mib = h.mib,"
                " used_core_percent = h.cores, version = version + 1"
                " FROM (SELECT device_uuid, count(*)::int AS slots, sum(memory_mib)::int AS mib,"
                "              sum(core_percent)::int AS cores"
                "         FROM allocation_devices GROUP BY device_uuid) h"
                " WHERE h.device_uuid = d.uuid"
            )
        await connection.execute("VACUUM ANALYZE")
    finally:
        await connection.close()


def wait_for(what: Callable[[], Awaitable[int]], wanted: int, within_s: float) -> float:
    """Seconds until `what()` is `wanted`. Raises: SystemExit when it is not in time."""
    began_s = time.monotonic()

    async def until() -> int:
        found = -1
        while time.monotonic() - began_s < within_s and found < wanted:
            found = await what()
            await asyncio.sleep(POLL_S)
        return found

    if (found := asyncio.run(until())) >= wanted:
        return time.monotonic() - began_s
    raise SystemExit(f"{found} of {wanted} after {within_s} s")
