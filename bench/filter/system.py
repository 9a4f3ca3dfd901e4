"""The system under test: durable Postgres, Redis, NATS, an API server and one scheduler process."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from hamicommon.ledger.migrations import upgrade
from hamicommon.settings import PostgresSettings
from hamilocal.servers.certificates import write_kubeconfig
from hamilocal.servers.data import nats, postgres, valkey
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import free_port
from hamilocal.system.layout import LocalCredentials, ensure_credentials

from bench.filter.cluster import Fill, fill_api_server, fill_ledger, names_of, placed_pods
from bench.filter.figures import cpu_s
from tests.processes import running

ROOT = Path(__file__).resolve().parents[2]
READY_S = 600.0
CHILD = ("setpriv", "--pdeathsig", "SIGKILL", "--")
"""Before a command: it dies with the bench, however that ends."""
LOG_TAIL_CHARACTERS = 4000
QUIET_S = 0.5
"""A process that used less than a tenth of the processor for this long has settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A running scheduler with a full ledger."""

    port: int
    pid: int
    dsn: str
    kubeconfig: Path
    folder: Path
    nodes: list[str]


@contextmanager
def system(nodes: int, fill: Fill, node_policy: str = "binpack") -> Iterator[Bench]:
    """Servers, API server, ledger and scheduler for one size, settled after its start."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hami-bench-")))
        folder.chmod(0o755)

        def start(plan: ServerPlan) -> Any:
            return stack.enter_context(running(plan, die_with_parent=True)).value

        dsn = start(postgres.prepare(folder / "postgres", durable=True)).url
        redis_url = start(valkey.prepare(folder / "redis")).url
        nats_url = start(nats.prepare(folder / "nats")).url
        upgrade.upgrade(PostgresSettings(dsn=dsn), ROOT / "migrations")
        made = ensure_credentials(folder / "credentials", serving=("apiserver",))
        placed = placed_pods(nodes, fill)
        asyncio.run(fill_api_server(folder / "apiserver", nodes, placed))
        asyncio.run(fill_ledger(dsn, nodes, fill, placed))
        del placed
        config = stack.enter_context(api_server(folder, made))
        env = {
            **os.environ,
            "HAMI_POSTGRES_DSN": dsn,
            "HAMI_REDIS_URL": redis_url,
            "HAMI_NATS_URL": nats_url,
            "KUBECONFIG": str(config),
            "HAMI_TELEMETRY_TRACES_FILE": str(folder / "traces.jsonl"),
            "HAMI_SCHEDULER_GRANT_KEY_FILE": str(made.grant_key),
            "HAMI_SCHEDULER_NODE_SCHEDULER_POLICY": node_policy,
        }
        port = free_port()
        env["HAMI_SCHEDULER_HTTP_BIND"] = f"127.0.0.1:{port}"
        log = stack.enter_context((folder / "scheduler.log").open("w"))
        command = [*CHILD, sys.executable, "-m", "hami_scheduler"]
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        stack.callback(stop, process)
        wait_until_ready(f"http://127.0.0.1:{port}/readyz", process, folder / "scheduler.log")
        wait_until_quiet(process.pid)
        bench = Bench(
            port=port,
            pid=process.pid,
            dsn=dsn,
            kubeconfig=config,
            folder=folder,
            nodes=names_of(nodes),
        )
        try:
            yield bench
        except (SystemExit, OSError) as exc:
            tail = (folder / "scheduler.log").read_text()[-LOG_TAIL_CHARACTERS:]
            raise SystemExit(f"{exc}\nthe end of the scheduler's log:\n{tail}") from exc


@contextmanager
def api_server(folder: Path, made: LocalCredentials) -> Iterator[Path]:
    """The emulated API server; yields a kubeconfig."""
    port = free_port()
    url = f"https://127.0.0.1:{port}"
    argv = [
        *(*CHILD, sys.executable, "-m", "kubelocal.apiserver", "--data", str(folder / "apiserver")),
        *("--port", str(port), "--tls-cert", str(made.certificate("apiserver"))),
        *("--tls-key", str(made.key("apiserver")), "--token-file", str(made.tokens)),
    ]
    token = made.secret("kubernetes-admin")
    config = write_kubeconfig(
        folder / "kubeconfig", server=url, authority=made.ca.read_bytes(), token=token
    )
    with (folder / "apiserver.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        wait_until_ready(f"{url}/readyz", process, folder / "apiserver.log", ca=made.ca)
        yield config
    finally:
        stop(process)


def end_when_asked() -> None:
    """A time-out's SIGTERM ends this process as Ctrl-C does: children and folders are cleared."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def wait_until_ready(
    url: str, process: subprocess.Popen[bytes], log: Path, ca: Path | None = None
) -> None:
    """Polls until the address answers 200."""
    verify: ssl.SSLContext | bool = ssl.create_default_context(cafile=str(ca)) if ca else True
    deadline = time.monotonic() + READY_S
    with httpx.Client(verify=verify) as client:
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if client.get(url).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
    raise SystemExit(f"{url} did not become ready:\n{log.read_text()[-2000:]}")


def wait_until_quiet(pid: int) -> None:
    """Waits until the process has caught up with what was sent to it."""
    before = cpu_s(pid)
    while True:
        time.sleep(QUIET_S)
        now = cpu_s(pid)
        if now - before < QUIET_S / 10:
            return
        before = now


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a child."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
