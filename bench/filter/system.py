"""The system under test: durable Postgres, Redis, NATS, an API server and one scheduler process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from hamilocal.system.layout import ensure_credentials

from bench.figures import cpu_s, resident_mb
from bench.filter.cluster import Fill, fill_api_server, fill_ledger, names_of, placed_pods
from bench.servers import (
    DataServers,
    api_server,
    data_servers,
    scheduler,
    temporary_folder,
    wait_until_quiet,
)

LOG_TAIL_CHARACTERS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A running scheduler with a full ledger."""

    port: int
    pid: int
    servers: DataServers
    kubeconfig: Path
    folder: Path
    nodes: list[str]
    start: dict[str, float]
    """Seconds, CPU time and memory of the scheduler until it was ready."""


@contextmanager
def system(nodes: int, fill: Fill, node_policy: str = "binpack") -> Iterator[Bench]:
    """Servers, API server, ledger and scheduler for one size, settled after its start."""
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        servers = stack.enter_context(data_servers(folder))
        made = ensure_credentials(folder / "credentials", serving=("apiserver",))
        placed = placed_pods(nodes, fill)
        asyncio.run(fill_api_server(folder / "apiserver", nodes, placed))
        asyncio.run(fill_ledger(servers.dsn, nodes, fill, placed))
        del placed
        config = stack.enter_context(api_server(folder, made))
        policy = {"HAMI_SCHEDULER_NODE_SCHEDULER_POLICY": node_policy}
        began_s = time.monotonic()
        started = stack.enter_context(scheduler(folder, servers, config, **policy))
        started.wait_until_ready()
        pid = started.process.pid
        start = {
            "ready_s": round(time.monotonic() - began_s, 1),
            "ready_cpu_s": round(cpu_s(pid), 1),
            "ready_mb": round(resident_mb(pid)),
        }
        wait_until_quiet(pid)
        try:
            yield Bench(
                port=int(started.url.rpartition(":")[2]),
                pid=pid,
                servers=servers,
                kubeconfig=config,
                folder=folder,
                nodes=names_of(nodes),
                start=start,
            )
        except (SystemExit, OSError) as exc:
            tail = started.log.read_text()[-LOG_TAIL_CHARACTERS:]
            raise SystemExit(f"{exc}\nthe end of the scheduler's log:\n{tail}") from exc
