"""The full ledger that the questions are asked on: its server, filled once or copied."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
from hamicommon.ledger.migrations import upgrade
from hamicommon.settings import PostgresSettings
from hamilocal.servers.data import postgres
from pydantic import SecretStr

from bench.sql.filler import fill
from tests.processes import running

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"
FILLED_AT = "0007"
"""The revision at which the ledger is filled: the one before the indexes of periods."""
DAYS = 60.0


async def filled(settings: PostgresSettings, allocations: int, usage: int) -> dict[str, float]:
    """An empty database at `FILLED_AT` with the history; seconds of each part."""
    await asyncio.to_thread(upgrade.upgrade, settings, MIGRATIONS, FILLED_AT)
    connection = await asyncpg.connect(settings.dsn.get_secret_value(), timeout=30)
    try:
        return await fill(
            connection,
            allocations=allocations,
            usage=usage,
            days=DAYS,
            until=datetime.now(UTC),
            report=lambda text: print(f"  {text}", flush=True),
        )
    finally:
        await connection.close()


@contextmanager
def server(folder: Path) -> Iterator[PostgresSettings]:
    """A durable one over this folder."""
    plan = postgres.prepare(folder, durable=True)
    with running(plan, die_with_parent=True) as started:
        yield PostgresSettings(dsn=SecretStr(started.value.url), command_timeout_s=600, pool_max=4)


def ledger(folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    """Makes the filled ledger in `folder`; what took how many seconds.

    With `--keep` it is filled there once, under the name of its size, and copied from then on.
    """
    sizes = (arguments.allocations, arguments.usage)
    if arguments.keep is None:
        with server(folder) as settings:
            return asyncio.run(filled(settings, *sizes))
    kept = arguments.keep / f"{FILLED_AT}-{arguments.allocations}-{arguments.usage}"
    took: dict[str, float] = {}
    if not kept.exists():
        with server(folder) as settings:
            took = asyncio.run(filled(settings, *sizes))
        folder.rename(kept)
    started = time.perf_counter()
    subprocess.run(["cp", "-a", str(kept), str(folder)], check=True)
    return {**took, "copied": round(time.perf_counter() - started, 1)}
