"""hami-metrics as it runs, with its pages, over a ledger that SQL filled."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import asyncpg
from hamilocal.servers.binaries import postgres_home
from hamilocal.supervisor.ports import free_port

from bench.pages.ledger import fill
from bench.servers import (
    data_servers,
    heap_settings,
    process,
    temporary_folder,
    wait_until_ready,
)

SCHEDULER = "hami-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The running process."""

    url: str
    pid: int
    postgres_pid: int
    dsn: str
    nats_url: str
    api_url: str
    """URL at which named questions are asked, and of metrics."""


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

    A session of psql stands for the scheduler's connection; without it the pages report it missing.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        servers = stack.enter_context(data_servers(folder, durable=durable))
        sizes = {
            "nodes": nodes,
            "cards": cards,
            "pods": pods,
            "waiting": waiting,
            "buckets": buckets,
        }
        with ThreadPoolExecutor(1) as thread:
            # The caller's thread may run an event loop already (Playwright's does).
            thread.submit(asyncio.run, _fill(servers.dsn, **sizes)).result()
        stack.enter_context(scheduler_session(servers.dsn))
        port, pages = free_port(), free_port()
        env = {
            **servers.env,
            **heap_settings("metrics"),
            "HAMI_METRICS_HTTP_BIND": f"127.0.0.1:{port}",
            "HAMI_METRICS_PAGES_BIND": f"127.0.0.1:{pages}",
        }
        log = folder / "metrics.log"
        started = stack.enter_context(process([sys.executable, "-m", "hami_metrics"], env, log))
        wait_until_ready(f"http://127.0.0.1:{port}/readyz", started, log)
        yield Service(
            url=f"http://127.0.0.1:{pages}",
            pid=started.pid,
            postgres_pid=servers.postgres_pid,
            dsn=servers.dsn,
            nats_url=servers.nats_url,
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


async def _fill(dsn: str, **sizes: int) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await fill(connection, **sizes)
    finally:
        await connection.close()
