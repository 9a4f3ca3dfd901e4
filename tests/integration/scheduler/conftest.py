"""Real Postgres, Redis and NATS and the emulated API server, for replicas of the scheduler."""

import asyncio
import contextlib
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from hami_scheduler.settings import Settings
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.permissions import SCHEDULER_USER
from hamicommon.errors import NotFound
from hamicommon.k8s.client import open_kube_api
from hamicommon.ledger.database import open_database
from hamicommon.settings import (
    KubernetesSettings,
    NatsSettings,
    PostgresSettings,
    RedisSettings,
)
from hamilocal.servers.certificates import write_kubeconfig
from hamilocal.supervisor.ports import free_port
from hamilocal.system.layout import ensure_credentials

from tests.integration.scheduler.world import World
from tests.waiting import PATIENCE_S, wait


@pytest.fixture(scope="session")
def kubeconfig_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One emulated API server for all cases; each leaves it without nodes and pods."""
    folder = tmp_path_factory.mktemp("apiserver")
    made = ensure_credentials(folder / "credentials", serving=("apiserver",))
    port = free_port()
    argv = [
        *(sys.executable, "-m", "kubelocal.apiserver", "--data", str(folder / "data")),
        *("--port", str(port), "--tls-cert", str(made.certificate("apiserver"))),
        *("--tls-key", str(made.key("apiserver")), "--token-file", str(made.tokens)),
    ]
    url = f"https://127.0.0.1:{port}"
    path = write_kubeconfig(
        folder / "kubeconfig",
        server=url,
        authority=made.ca.read_bytes(),
        token=made.secret("kubernetes-admin"),
    )
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=folder, env=dict(os.environ))
        try:
            _wait_until_ready(process, url, made.ca, folder / "log")
            yield path
        finally:
            process.terminate()
            process.wait(timeout=PATIENCE_S)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, ca: Path, log: Path) -> None:
    context = ssl.create_default_context(cafile=str(ca))

    def ready() -> bool:
        assert process.poll() is None, f"the API server did not start: {log.read_text()}"
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{url}/readyz", verify=context).status_code == 200
        return False

    wait(ready, "the API server to be ready", why=log.read_text)


@pytest.fixture
async def world(
    postgres_dsn: str, redis_url: str, nats_url: str, kubeconfig_file: Path
) -> AsyncIterator[World]:
    """The surroundings, with no replica yet."""
    credentials = kubeconfig_file.parent / "credentials"
    settings = Settings(
        grant_key_file=credentials / "grant.key",
        reconcile_s=1.0,
        reap_s=0.1,
        bind_timeout_s=8.0,
        # A store that answers late is unavailable; only cases about that shall meet it.
        postgres=PostgresSettings(
            dsn=postgres_dsn, connect_timeout_s=PATIENCE_S, command_timeout_s=PATIENCE_S
        ),
        redis=RedisSettings(url=redis_url, timeout_s=10.0),
        nats=NatsSettings(url=nats_url),
        kubernetes=KubernetesSettings(kubeconfig=kubeconfig_file),
    )
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(open_kube_api(kubeconfig_file))
        bus = await stack.enter_async_context(
            open_bus(settings.nats, SCHEDULER_USER, owns_streams=True)
        )
        database = await stack.enter_async_context(
            open_database(settings.postgres, application="test")
        )
        world = World(api=api, bus=bus, database=database, settings=settings, stack=stack)
        agents = asyncio.create_task(
            bus.serve("hami.agents.readiness.*", "agents", world.answer_readiness)
        )
        yield world
        agents.cancel()
        # Otherwise replicas of the next case may see one go that has come again there.
        for node in (await api.get("/api/v1/nodes"))["items"]:
            await api.delete(f"/api/v1/nodes/{node['metadata']['name']}")
        for pod in (await api.get("/api/v1/pods"))["items"]:
            with contextlib.suppress(NotFound):
                await world.delete(pod)
