"""The two servers under load, each its own process: the console script and the bare endpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hamilocal.supervisor.ports import free_port


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: the webhook, or the bare endpoint."""

    pid: int
    port: int

    def cpu_s(self) -> float:
        """CPU time of the process so far: the scheduler's own count of its threads, in ns. The
        times of proc(5) `stat` are sampled by ticks, which short bursts of work slip between."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def webhook(folder: Path) -> Iterator[Server]:
    """The console script, as it runs in a cluster, without a bus."""
    port = free_port()
    env = os.environ | {
        "HAMI_WEBHOOK_HTTP_BIND": f"127.0.0.1:{port}",
        "HAMI_WEBHOOK_TLS_CERT_FILE": str(folder / "tls.crt"),
        "HAMI_WEBHOOK_TLS_KEY_FILE": str(folder / "tls.key"),
        "HAMI_TELEMETRY_TRACES_FILE": str(folder / "traces.jsonl"),
    }
    script = Path(sys.executable).parent / "hami-webhook"
    with (folder / "audit.log").open("w") as log, _running([script], port, env, log) as server:
        yield server


@contextmanager
def bare_endpoint(folder: Path) -> Iterator[Server]:
    """The same server with nothing to decide."""
    port, module = free_port(), Path(__file__).with_name("bare_endpoint.py")
    command: list[str | Path] = [sys.executable, module, f"127.0.0.1:{port}", folder]
    with _running(command, port, dict(os.environ), None) as server:
        yield server


@contextmanager
def _running(
    command: Sequence[str | Path], port: int, env: Mapping[str, str], log: IO[str] | None
) -> Iterator[Server]:
    process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        yield Server(process.pid, port)
    finally:
        process.terminate()
        process.wait(timeout=30)
