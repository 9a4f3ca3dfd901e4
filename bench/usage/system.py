"""System that `make bench-usage` measures: PostgreSQL, NATS and the metrics service's process."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import httpx
from hamicommon.ledger.migrations import upgrade
from hamicommon.settings import PostgresSettings
from hamilocal.servers.data import nats, postgres
from hamilocal.supervisor.ports import free_port
from pydantic import SecretStr

from bench.usage.load import NODES, usage
from bench.usage.processes import family_cpu_s
from tests.processes import running

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 600.0


class Measured:
    """The servers, and what each has used since it was asked last."""

    def __init__(self, dsn: str, nats_url: str, port: int, pids: dict[str, int]) -> None:
        self.dsn = dsn
        self.nats_url = nats_url
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30)
        self.pids = {**pids, "sender": os.getpid()}

    def cpu(self) -> dict[str, float]:
        """CPU seconds of each so far."""
        return {name: family_cpu_s(pid) for name, pid in self.pids.items()}

    async def samples(self, result: str) -> int:
        """How many the service has counted."""
        name = f'hami_usage_samples_total{{result="{result}"}} '
        for line in (await self.http.get("/metrics")).text.splitlines():
            if line.startswith(name):
                return int(float(line.rpartition(" ")[2]))
        return 0

    async def until(self, result: str, count: int) -> None:
        """Waits for it. Raises: SystemExit when that takes too long."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (found := await self.samples(result)) < count:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{found} of {count} samples {result} after {PATIENCE_S:g} s")
            await asyncio.sleep(0.1)


async def grant_all(dsn: str) -> None:
    """Grant every pod of the load what it uses: samples of others are not stored."""
    since = datetime.now(UTC) - timedelta(days=1)
    reports = [usage(node, 0, since) for node in range(NODES)]
    pods = [(report.node, one) for report in reports for one in report.containers]
    connection = await asyncpg.connect(dsn)
    try:
        await connection.copy_records_to_table(
            "nodes",
            records=[(report.node, since) for report in reports],
            columns=("name", "inventory_at"),
        )
        await connection.copy_records_to_table(
            "allocations",
            records=[
                (uuid4(), one.pod_uid, one.namespace, one.pod, 1, node, "allocated", "{}", since)
                for node, one in pods
            ],
            columns=(
                *("id", "pod_uid", "namespace", "pod_name", "attempt", "node", "state"),
                *("annotations", "reserved_at"),
            ),
        )
    finally:
        await connection.close()


@asynccontextmanager
async def system(folder: Path) -> AsyncIterator[Measured]:
    """The servers and the service."""
    port = free_port()
    with (
        running(postgres.prepare(folder / "postgres"), die_with_parent=True) as database,
        running(nats.prepare(folder / "nats"), die_with_parent=True) as broker,
    ):
        dsn, nats_url = database.value.url, broker.value.url
        settings = PostgresSettings(dsn=SecretStr(dsn))
        await asyncio.to_thread(upgrade.upgrade, settings, ROOT / "migrations")
        await grant_all(dsn)
        environment = {
            "HAMI_POSTGRES_DSN": dsn,
            "HAMI_NATS_URL": nats_url,
            "HAMI_METRICS_HTTP_BIND": f"127.0.0.1:{port}",
            # Asked for by `summed`, not in the time of the others.
            "HAMI_METRICS_ROLLUP_GRACE_S": "1e9",
        }
        service = await asyncio.create_subprocess_exec(
            Path(sys.executable).parent / "hami-metrics",
            env=os.environ | environment,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        pids = {"service": service.pid, "Postgres": database.value.pid, "NATS": broker.value.pid}
        at = Measured(dsn, nats_url, port, pids)
        try:
            await _ready(at)
            yield at
        finally:
            await at.http.aclose()
            service.terminate()
            await service.wait()


async def _ready(at: Measured) -> None:
    deadline_s = time.monotonic() + 60
    while True:
        try:
            if (await at.http.get("/readyz")).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        if time.monotonic() > deadline_s:
            raise SystemExit("the service is not ready after 60 s")
        await asyncio.sleep(0.1)
