"""Servers of a benchmark, as processes that end with it: data servers, API server, our services."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from pydantic import SecretStr

from bench.figures import ROOT, cpu_s
from tests.processes import running

READY_S = 900.0
"""A machine that is busy with other things lists 80,000 pods for minutes."""
CHILD = ("setpriv", "--pdeathsig", "SIGKILL", "--")
"""Before a command: it dies with the bench, however that ends."""
IDLE_INTERVAL_S = 0.5
"""A process that used little of a processor for this long has settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataServers:
    """Postgres, Redis and NATS."""

    dsn: str
    redis_url: str
    nats_url: str
    nats_monitor: str
    postgres_pid: int
    nats_pid: int

    @property
    def env(self) -> dict[str, str]:
        """The environment in which our services find them."""
        return {
            "HAMI_POSTGRES_DSN": self.dsn,
            "HAMI_REDIS_URL": self.redis_url,
            "HAMI_NATS_URL": self.nats_url,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """A scheduler process, which may not be ready yet."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def wait_until_ready(self) -> None:
        """Raises: SystemExit with its log."""
        wait_until_ready(f"{self.url}/readyz", self.process, self.log)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Folder that every user may enter: PostgreSQL may have to run as `nobody`."""
    folder = Path(tempfile.mkdtemp(prefix="hami-bench-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def data_servers(folder: Path, *, durable: bool = True) -> Iterator[DataServers]:
    """Postgres with the schema, Redis, and NATS with its page of counters."""
    with ExitStack() as stack:

        def start(plan: ServerPlan) -> Any:
            return stack.enter_context(running(plan, die_with_parent=True)).value

        database = start(postgres.prepare(folder / "postgres", durable=durable))
        locks = start(valkey.prepare(folder / "redis"))
        plan, monitor = nats.prepare(folder / "nats"), f"127.0.0.1:{free_port()}"
        config = folder / "nats" / "nats.conf"
        config.write_text(json.dumps({**json.loads(config.read_text()), "http": monitor}))
        bus = start(plan)
        settings = PostgresSettings(dsn=SecretStr(database.url))
        with ThreadPoolExecutor(1) as thread:
            # The caller's thread may run an event loop already.
            thread.submit(upgrade.upgrade, settings, ROOT / "migrations").result()
        yield DataServers(
            dsn=database.url,
            redis_url=locks.url,
            nats_url=bus.url,
            nats_monitor=f"http://{monitor}",
            postgres_pid=database.pid,
            nats_pid=bus.pid,
        )


@contextmanager
def api_server(folder: Path, made: LocalCredentials) -> Iterator[Path]:
    """The emulated API server; yields a kubeconfig."""
    port = free_port()
    url = f"https://127.0.0.1:{port}"
    argv = [
        *(sys.executable, "-m", "kubelocal.apiserver", "--data", str(folder / "apiserver")),
        *("--port", str(port), "--tls-cert", str(made.certificate("apiserver"))),
        *("--tls-key", str(made.key("apiserver")), "--token-file", str(made.tokens)),
    ]
    token = made.secret("kubernetes-admin")
    config = write_kubeconfig(
        folder / "kubeconfig", server=url, authority=made.ca.read_bytes(), token=token
    )
    with process(argv, {}, folder / "apiserver.log") as started:
        wait_until_ready(f"{url}/readyz", started, folder / "apiserver.log", ca=made.ca)
        yield config


@contextmanager
def scheduler(
    folder: Path, servers: DataServers, kubeconfig: Path, **settings: str
) -> Iterator[Scheduler]:
    """A scheduler that runs inside the block.

    Args:
        folder: has its logs and traces.
        servers: the data servers that it is to use.
        kubeconfig: of the API server that it is to follow.
        settings: more of its environment.
    """
    address = f"127.0.0.1:{free_port()}"
    made = ensure_credentials(folder / "credentials", serving=())
    env = servers.env | {
        "KUBECONFIG": str(kubeconfig),
        "HAMI_TELEMETRY_TRACES_FILE": str(folder / "traces.jsonl"),
        "HAMI_SCHEDULER_GRANT_KEY_FILE": str(made.grant_key),
        "HAMI_SCHEDULER_HTTP_BIND": address,
    }
    log = folder / "scheduler.log"
    with process([sys.executable, "-m", "hami_scheduler"], env | settings, log) as started:
        yield Scheduler(process=started, url=f"http://{address}", log=log)


@contextmanager
def process(
    argv: list[str], env: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs inside the block."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            [*CHILD, *argv], env={**os.environ, **env}, stdout=output, stderr=output
        )
    try:
        yield started
    finally:
        stop(started)


def end_when_asked() -> None:
    """A time-out's SIGTERM ends this process as Ctrl-C does: children and folders are cleared."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def wait_until_ready(
    url: str, process: subprocess.Popen[bytes], log: Path, ca: Path | None = None
) -> None:
    """Poll until the address answers 200. Raises: SystemExit with the log if it does not."""
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
    raise SystemExit(f"{url} did not become ready:\n{log.read_text()[-4000:]}")


def wait_until_quiet(pid: int, *, cores: float = 0.1) -> None:
    """Wait until the process has handled its messages and uses fewer cores than this."""
    before = cpu_s(pid)
    while True:
        time.sleep(IDLE_INTERVAL_S)
        now = cpu_s(pid)
        if now - before < cores * IDLE_INTERVAL_S:
            return
        before = now


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a child."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def heap_settings(stage: str) -> dict[str, str]:
    """The `MALLOC_` variables of that stage of the Dockerfile, which must set some."""
    _, _, after = (ROOT / "Dockerfile").read_text().partition(f" AS {stage}\n")
    lines, _, _ = after.partition("\nFROM ")
    found = dict(re.findall(r"\b(MALLOC_\w+)=(\S+)", lines))
    if not found:
        raise ValueError(f"Dockerfile: stage {stage} sets no MALLOC_ variable")
    return found
