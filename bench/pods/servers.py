"""Servers of the benchmark beside Kubernetes: the data servers, and a scheduler of ours."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from hamicommon.ledger.migrations import upgrade
from hamicommon.settings import PostgresSettings
from hamilocal.servers.data import nats, postgres, valkey
from hamilocal.supervisor.ports import free_port
from hamilocal.system.layout import ensure_credentials
from pydantic import SecretStr

from bench.filter.system import CHILD, ROOT
from tests.control_plane import ControlPlane
from tests.processes import running


async def data_servers(folder: Path, stack: AsyncExitStack) -> tuple[dict[str, str], str]:
    """Starts the data servers; the environment that a scheduler finds them by, and where NATS
    shows its counters."""

    def start(plan: Any) -> str:
        return str(stack.enter_context(running(plan, die_with_parent=True)).value.url)

    dsn = start(postgres.prepare(folder / "postgres", durable=True))
    await asyncio.to_thread(
        upgrade.upgrade, PostgresSettings(dsn=SecretStr(dsn)), ROOT / "migrations"
    )
    bus, monitor = nats.prepare(folder / "nats"), free_port()
    config = folder / "nats" / "nats.conf"
    config.write_text(
        json.dumps({**json.loads(config.read_text()), "http": f"127.0.0.1:{monitor}"})
    )
    env = {
        "HAMI_POSTGRES_DSN": dsn,
        "HAMI_REDIS_URL": start(valkey.prepare(folder / "redis")),
        "HAMI_NATS_URL": start(bus),
    }
    return env, f"http://127.0.0.1:{monitor}"


def scheduler(
    folder: Path, plane: ControlPlane, url: str, env: dict[str, str], log_file: Path
) -> subprocess.Popen[bytes]:
    """A process of it over these servers, with its extender at `url`."""
    made = ensure_credentials(folder / "credentials", serving=())
    with log_file.open("wb") as log:
        return subprocess.Popen(
            [*CHILD, sys.executable, "-m", "hami_scheduler"],
            env={
                **os.environ,
                **env,
                "KUBECONFIG": str(plane.kubeconfig),
                "HAMI_TELEMETRY_TRACES_FILE": str(log_file.with_suffix(".traces.jsonl")),
                "HAMI_SCHEDULER_GRANT_KEY_FILE": str(made.grant_key),
                "HAMI_SCHEDULER_HTTP_BIND": url.removeprefix("http://"),
            },
            stdout=log,
            stderr=log,
        )
