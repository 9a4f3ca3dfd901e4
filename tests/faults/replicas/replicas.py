"""Several scheduler processes over one durable ledger, and nodes that one process plays."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from hamicommon.bus.client import Bus
from hamicommon.bus.connecting import open_bus
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.types import Json
from hamicommon.settings import NatsSettings
from hamilocal.servers.data import nats, postgres, valkey
from hamilocal.supervisor.ports import free_port
from hamilocal.system.layout import ensure_credentials

from bench.pods.played import PlayedNodes, equal_nodes
from bench.servers import api_server, stop, wait_until_ready
from tests.faults.backends.postgres_pair import PostgresPair, postgres_pair
from tests.processes import running
from tests.servers import memory_folder, migrate, psql
from tests.waiting import PATIENCE_S

CREATORS = 16
"""Pods that are created concurrently."""
MORE_THAN_A_CARD_MIB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The parts of a cluster that the cases use."""

    ports: list[int]
    """Ports of the replicas' extenders."""
    processes: list[subprocess.Popen[bytes]]
    dsn: str
    api: KubeApi
    bus: Bus
    nodes: list[str]
    folder: Path
    postgres: PostgresPair | None = None
    """The two servers of the ledger, in cases with a standby."""

    def kill(self, replica: int) -> None:
        """kill -9."""
        self.processes[replica].send_signal(signal.SIGKILL)

    async def sql(self, query: str) -> str:
        """Ask the ledger."""
        return await asyncio.to_thread(psql, self.dsn, query)

    async def pods(self, namespace: str, count: int, *, memory_mib: int) -> list[Json]:
        """Create pods with one slice each; return them as kube-scheduler would send them."""
        gate = asyncio.Semaphore(CREATORS)
        prefix = uuid.uuid4().hex[:6]

        async def one(number: int) -> Json:
            limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib)}
            container = {"name": "main", "image": "none", "resources": {"limits": limits}}
            body = {
                "metadata": {"name": f"{prefix}-{number}"},
                "spec": {"schedulerName": "hami-scheduler", "containers": [container]},
            }
            async with gate:
                made = await self.api.create(f"/api/v1/namespaces/{namespace}/pods", body)
            made["metadata"].pop("managedFields", None)
            return made

        return await asyncio.gather(*(one(number) for number in range(count)))


@asynccontextmanager
async def cluster(
    *,
    replicas: int,
    nodes: int,
    cards: int,
    slots: int,
    policy: str = "binpack",
    standby: bool = False,
) -> AsyncIterator[Cluster]:
    """Servers, an emulated API server, played nodes, and so many replicas that are ready.

    There is no Lease, so all of them are active.
    With `standby` Postgres has one that every commit waits for.
    """
    names = [f"node-{number}" for number in range(nodes)]
    async with AsyncExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="hami-replicas-", dir=memory_folder()))
        folder.chmod(0o755)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)

        def start(plan: Any) -> str:
            return str(stack.enter_context(running(plan, die_with_parent=True)).value.url)

        pair = None
        if standby:
            pair = stack.enter_context(postgres_pair(folder / "postgres"))
            dsn = pair.dsn
        else:
            dsn = start(postgres.prepare(folder / "postgres", durable=True))
        redis_url = start(valkey.prepare(folder / "redis"))
        nats_url = start(nats.prepare(folder / "nats"))
        migrate(dsn)
        made = ensure_credentials(folder / "credentials", serving=("apiserver",))
        config = stack.enter_context(api_server(folder, made))
        bus = await stack.enter_async_context(
            open_bus(NatsSettings(url=nats_url), "played", owns_streams=True)
        )
        api = await stack.enter_async_context(open_kube_api(config))
        env = {
            **os.environ,
            "HAMI_POSTGRES_DSN": dsn,
            "HAMI_REDIS_URL": redis_url,
            "HAMI_NATS_URL": nats_url,
            "KUBECONFIG": str(config),
            "HAMI_SCHEDULER_GRANT_KEY_FILE": str(made.grant_key),
            "HAMI_SCHEDULER_NODE_SCHEDULER_POLICY": policy,
            "HAMI_SCHEDULER_GPU_SCHEDULER_POLICY": policy,
        }
        ports = [free_port() for _ in range(replicas)]
        processes = []
        for port in ports:
            process = _replica(folder, port, env)
            stack.callback(stop, process)
            processes.append(process)
        played = PlayedNodes(api, bus, cards=equal_nodes(names, cards=cards, slots=slots))
        await played.register()
        playing = asyncio.create_task(played.run())
        stack.callback(playing.cancel)
        for port, process in zip(ports, processes, strict=True):
            log_path = folder / f"scheduler-{port}.log"
            url = f"http://127.0.0.1:{port}/readyz"
            await asyncio.to_thread(wait_until_ready, url, process, log_path)
        found = Cluster(
            ports=ports,
            processes=processes,
            dsn=dsn,
            api=api,
            bus=bus,
            nodes=names,
            folder=folder,
            postgres=pair,
        )
        async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient() as http:
            for port in ports:
                await _until_cards_are_known(http, port, names, cards)
        yield found


async def _until_cards_are_known(
    http: httpx.AsyncClient, port: int, nodes: list[str], cards: int
) -> None:
    """Ask for all cards of one node after the other; nothing stays assumed."""

    async def is_placed(node: str, memory_mib: int) -> bool:
        limits = {"nvidia.com/gpu": str(cards), "nvidia.com/gpumem": str(memory_mib)}
        container = {"name": "main", "image": "none", "resources": {"limits": limits}}
        pod = {
            "metadata": {"name": "asks", "namespace": "default", "uid": f"asks-{port}"},
            "spec": {"schedulerName": "hami-scheduler", "containers": [container]},
        }
        body = {"pod": pod, "nodenames": [node]}
        answer = await http.post(f"http://127.0.0.1:{port}/filter", json=body)
        return bool(answer.json()["NodeNames"])

    for node in nodes:
        while not await is_placed(node, 1):
            await asyncio.sleep(0.1)
    # A pod that comes again gives up its assumed placement.
    assert not await is_placed(nodes[0], MORE_THAN_A_CARD_MIB)


def _replica(folder: Path, port: int, env: dict[str, str]) -> subprocess.Popen[bytes]:
    with (folder / f"scheduler-{port}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "hami_scheduler"],
            env={**env, "HAMI_SCHEDULER_HTTP_BIND": f"127.0.0.1:{port}"},
            stdout=log,
            stderr=log,
        )
