"""hami-metrics as it runs, with its pages, over a ledger that the database filled by itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
from hamicommon.ledger.migrations import upgrade
from hamicommon.settings import PostgresSettings
from hamilocal.servers.binaries import postgres_home
from hamilocal.servers.data import nats, postgres
from hamilocal.supervisor.ports import free_port
from pydantic import SecretStr

from bench.filter.system import CHILD, ROOT, stop, wait_until_ready
from bench.image import heap_settings
from bench.pages.ledger import fill
from tests.processes import running

SCHEDULER = "hami-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The running process."""

    url: str
    pid: int
    dsn: str
    api_url: str = ""
    """URL at which named questions are asked."""


@contextmanager
def service(
    nodes: int,
    *,
    cards: int = 8,
    pods: int,
    waiting: int = 40,
    buckets: int = 6,
    durable: bool = True,
) -> Iterator[Service]:
    """Postgres with its ledger, NATS, and hami-metrics beside them.

    A session of psql stands for the scheduler's connection, which the pages miss otherwise.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hami-bench-")))
        folder.chmod(0o755)
        server = postgres.prepare(folder / "postgres", durable=durable)
        dsn = stack.enter_context(running(server, die_with_parent=True)).value.url
        bus = nats.prepare(folder / "nats")
        bus_url = stack.enter_context(running(bus, die_with_parent=True)).value.url
        sizes = {
            "nodes": nodes,
            "cards": cards,
            "pods": pods,
            "waiting": waiting,
            "buckets": buckets,
        }
        with ThreadPoolExecutor(1) as thread:
            # A caller's thread may run a loop of its own (Playwright's does).
            thread.submit(_prepare, dsn, sizes).result()
        stack.enter_context(scheduler_session(dsn))
        port, pages = free_port(), free_port()
        log = folder / "metrics.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*CHILD, sys.executable, "-m", "hami_metrics"],
                env={
                    **os.environ,
                    **heap_settings("metrics"),
                    "HAMI_POSTGRES_DSN": dsn,
                    "HAMI_NATS_URL": bus_url,
                    "HAMI_METRICS_HTTP_BIND": f"127.0.0.1:{port}",
                    "HAMI_METRICS_PAGES_BIND": f"127.0.0.1:{pages}",
                },
                stdout=output,
                stderr=output,
            )
        stack.callback(stop, process)
        wait_until_ready(f"http://127.0.0.1:{port}/readyz", process, log)
        yield Service(
            url=f"http://127.0.0.1:{pages}",
            pid=process.pid,
            dsn=dsn,
            api_url=f"http://127.0.0.1:{port}",
        )


@contextmanager
def scheduler_session(dsn: str) -> Iterator[None]:
    """Keep a session under the scheduler's name that asks every second, as the scheduler does."""
    psql = [str(postgres_home() / "bin" / "psql"), "-XAtq", dsn]
    process = subprocess.Popen(
        psql,
        env={**os.environ, "PGAPPNAME": SCHEDULER},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    process.stdin.write(b"SELECT 1 \\watch 1\n")
    process.stdin.flush()
    try:
        yield
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _prepare(dsn: str, sizes: Mapping[str, int]) -> None:
    upgrade.upgrade(PostgresSettings(dsn=SecretStr(dsn)), ROOT / "migrations")
    asyncio.run(_fill(dsn, sizes))


async def _fill(dsn: str, sizes: Mapping[str, int]) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await fill(connection, **sizes)
    finally:
        await connection.close()
