"""Another replica becomes active under load: the seconds without decisions, and no loss.

Each pod of the Deployment is two processes with their own host name: the real kube-scheduler, with
the election that `k8s/base` configures, and ours. Nodes are simulated; 20 pods a second arrive.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from hamicommon.bus.connecting import open_bus
from hamicommon.errors import NotFound
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.process.shutdown import end
from hamicommon.settings import NatsSettings
from hamilocal.supervisor.ports import free_port
from hamilocal.system.kubernetes import scheduler_configuration
from hamilocal.system.layout import ensure_credentials
from hamilocal.system.options import UpOptions

from bench.pods.played import PlayedNodes, equal_nodes
from bench.servers import CHILD, data_servers, temporary_folder, wait_until_ready
from tests import measured
from tests.control_plane import (
    Assets,
    ControlPlane,
    control_plane,
    prepare_scheduler,
    scheduler_config,
)
from tests.e2e.system import INVARIANTS
from tests.servers import psql
from tests.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timed]

BASE = Path(__file__).parents[3] / "k8s" / "base" / "kube-scheduler.yaml"
NODES, CARDS, SLOTS = 30, 8, 10
INTERVAL_S = 0.05
STEADY_S = 5.0
"""Seconds of load before and after a fault."""
LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/hami-scheduler"
CONFIGURATION: dict[str, Any] = yaml.safe_load(
    next(
        each["data"]["config.yaml"]
        for each in yaml.safe_load_all(BASE.read_text())
        if each["kind"] == "ConfigMap"
    )
)
ELECTION: dict[str, Any] = CONFIGURATION["leaderElection"] | {"resourceNamespace": "default"}
EXPIRES_S = float(ELECTION["leaseDuration"].removesuffix("s"))
NODE_LOST_S = 10.0


@dataclass
class Pod:
    """The two containers, and where their logs are."""

    name: str
    folder: Path
    stock: subprocess.Popen[bytes]
    ours: subprocess.Popen[bytes]

    def signal(self, number: signal.Signals, *, only_stock: bool = False) -> None:
        for process in (self.stock,) if only_stock else (self.stock, self.ours):
            with suppress(ProcessLookupError):
                process.send_signal(number)

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        for process in (self.stock, self.ours):
            process.wait()


@dataclass
class System:
    """A control plane with played nodes, and the pods that were started."""

    folder: Path
    plane: ControlPlane
    api: KubeApi
    env: dict[str, str]
    stack: AsyncExitStack
    ran: dict[str, float] = field(default_factory=dict)
    """When each pod was seen to run, by uid."""
    made: set[str] = field(default_factory=set)

    async def sql(self, query: str) -> str:
        return await asyncio.to_thread(psql, self.env["HAMI_POSTGRES_DSN"], query)

    async def start(self, name: str) -> Pod:
        """A pod of the Deployment, once it is ready."""
        folder = self.folder / name
        folder.mkdir()
        port, secure = free_port(), free_port()
        url = f"http://127.0.0.1:{port}"
        kubeconfig = self.plane.kubeconfig
        extenders = scheduler_configuration(
            kubeconfig_path="",
            extender_url=url,
            scheduler_name="hami-scheduler",
            resources=UpOptions().vendors().resource_names,
        )["extenders"]
        config = scheduler_config(
            version=self.plane.assets.version,
            kubeconfig=kubeconfig,
            extenders=extenders,
            profiles=("hami-scheduler",),
        )
        plan = prepare_scheduler(
            folder / "kube-scheduler",
            binary=self.plane.assets.scheduler,
            kubeconfig=kubeconfig,
            config=config | {"leaderElection": ELECTION},
        )
        argv = [each for each in plan.argv if not each.startswith("--secure-port")]
        made = ensure_credentials(self.folder / "credentials", serving=())
        own = {
            "KUBECONFIG": str(self.plane.kubeconfig),
            "HAMI_SCHEDULER_GRANT_KEY_FILE": str(made.grant_key),
            "HAMI_SCHEDULER_HTTP_BIND": url.removeprefix("http://"),
            "HAMI_SCHEDULER_LEASE_NAME": str(ELECTION["resourceName"]),
            "HAMI_SCHEDULER_LEASE_NAMESPACE": "default",
            "HAMI_SCHEDULER_KUBE_SCHEDULER": f"127.0.0.1:{secure}",
        }
        ours = _process(
            name, [sys.executable, "-m", "hami_scheduler"], self.env | own, folder / "ours.log"
        )
        stock = _process(
            name, [*argv, f"--secure-port={secure}"], {}, folder / "kube-scheduler.log"
        )
        pod = Pod(name, folder, stock, ours)
        self.stack.callback(pod.close)
        await asyncio.to_thread(wait_until_ready, f"{url}/readyz", ours, folder / "ours.log")
        return pod

    async def holder(self) -> str:
        try:
            spec = (await self.api.get(LEASE))["spec"]
        except NotFound:
            return ""
        return str(spec.get("holderIdentity") or "").split("_")[0]

    async def until_held_by(self, pod: Pod) -> None:
        async def is_held() -> bool:
            return await self.holder() == pod.name

        await eventually(is_held, f"{pod.name} to hold the Lease")

    async def load(self) -> None:
        """Create pods until cancelled."""
        prefix = uuid.uuid4().hex[:6]
        number = 0
        due_s = time.monotonic()
        while True:
            limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"}
            container = {"name": "main", "image": "none", "resources": {"limits": limits}}
            body = {
                "metadata": {"name": f"{prefix}-{number}"},
                "spec": {"schedulerName": "hami-scheduler", "containers": [container]},
            }
            made = await self.api.create("/api/v1/namespaces/default/pods", body)
            self.made.add(made["metadata"]["uid"])
            number += 1
            due_s += INTERVAL_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    async def until_all_run(self) -> None:

        await eventually(lambda: self.made <= self.ran.keys(), "all pods to run")

    def pause_s(self, since_s: float) -> float:
        """The longest time without a pod that began to run."""
        times = sorted(at_s for at_s in self.ran.values() if at_s >= since_s)
        return max(later - before for before, later in zip([since_s, *times], times, strict=False))


def _process(host: str, argv: list[str], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', host]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*CHILD, *named, *argv], env={**os.environ, **env}, stdout=output, stderr=output
        )


@asynccontextmanager
async def system(assets: Assets) -> AsyncIterator[System]:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        plane = stack.enter_context(control_plane(folder / "plane", assets=assets))
        api = await stack.enter_async_context(open_kube_api(plane.kubeconfig))
        servers = stack.enter_context(data_servers(folder))
        bus = await stack.enter_async_context(
            open_bus(NatsSettings(url=servers.nats_url), "played", owns_streams=True)
        )
        made = System(folder, plane, api, servers.env, stack)
        names = [f"node-{number}" for number in range(NODES)]
        played = PlayedNodes(
            api,
            bus,
            cards=equal_nodes(names, cards=CARDS, slots=SLOTS),
            late=True,
            on_running=lambda uid: made.ran.setdefault(uid, time.monotonic()),
        )
        await played.register()
        playing = asyncio.create_task(played.run())
        stack.push_async_callback(end, [playing])
        yield made


async def _under_load(
    system: System, active: Pod, next_one: Pod, *, only_stock: bool, number: signal.Signals
) -> float:
    """Seconds without a decision."""
    loading = asyncio.create_task(system.load())
    await asyncio.sleep(STEADY_S)
    at_s = time.monotonic()
    active.signal(number, only_stock=only_stock)
    await system.until_held_by(next_one)
    await asyncio.sleep(STEADY_S)
    await end([loading])
    await system.until_all_run()
    return system.pause_s(at_s)


@pytest.mark.skipif(os.geteuid() != 0, reason="host names of their own need root")
async def test_another_replica_goes_on_when_the_active_one_is_gone(
    kubernetes_assets: Assets,
) -> None:
    async with system(kubernetes_assets) as made:
        first = await made.start("pod-a")
        await made.until_held_by(first)
        second = await made.start("pod-b")
        query = "SELECT count(*) FROM devices"

        async def is_known() -> bool:
            return await made.sql(query) == str(NODES * CARDS)

        await eventually(is_known, "the nodes' cards")

        deleted_s = await _under_load(made, first, second, only_stock=False, number=signal.SIGTERM)
        third = await made.start("pod-c")
        killed_s = await _under_load(made, second, third, only_stock=True, number=signal.SIGKILL)
        status = await asyncio.to_thread(second.ours.wait, PATIENCE_S)
        fourth = await made.start("pod-d")
        # As a node that is cut off: its processes stay, and continue when another pod is active.
        lost_s = await _under_load(made, third, fourth, only_stock=False, number=signal.SIGSTOP)
        fifth = await made.start("pod-e")
        # As a node without power: no process is left to release the Lease.
        gone_s = await _under_load(made, fourth, fifth, only_stock=False, number=signal.SIGKILL)
        third.signal(signal.SIGCONT)
        stale = await asyncio.to_thread(third.ours.wait, PATIENCE_S)

        assert (status, stale) == (1, 1), "who lost the Lease ends"
        assert "holds the Lease default/hami-scheduler" in (third.folder / "ours.log").read_text()
        for name, statement in INVARIANTS.items():
            assert await made.sql(statement) == "", name
        live = "SELECT count(*) FROM allocations WHERE ended_at IS NULL"
        assert await made.sql(live) == str(len(made.made))
        measured.note(
            f"LIVE-4 under {1 / INTERVAL_S:.0f} pods/s: nothing decided for {deleted_s:.1f} s "
            f"after the active pod was deleted, {killed_s:.1f} s after its kube-scheduler was "
            "killed, "
            f"{lost_s:.1f} s after its node was cut off, {gone_s:.1f} s after both containers were "
            f"killed at once; {len(made.made)} pods, each granted once"
        )
        assert max(deleted_s, killed_s) < EXPIRES_S, "the Lease was released"
        assert max(lost_s, gone_s) < NODE_LOST_S
