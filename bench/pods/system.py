"""A real control plane, one scheduler of ours, and so many played nodes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hamicommon.bus.connecting import open_bus
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.pod_groups import GROUP_LABEL
from hamicommon.settings import NatsSettings
from hamilocal.system.kubernetes import scheduler_configuration
from hamilocal.system.options import UpOptions

from bench.figures import tree_cpu_s
from bench.pods import claims
from bench.pods.counters import REPORTED_S, Servers, checkpoint, ledger_is_idle
from bench.pods.foreign import AnnotatedNodes, until_it_answers
from bench.pods.played import RESOURCE, SLOTS, Cards, PlayedNodes, equal_nodes
from bench.servers import data_servers, scheduler, temporary_folder
from tests.control_plane import ControlPlane, control_plane, find_assets
from tests.processes import running

SCHEDULER = "hami-scheduler"
CLAIMS = "claims"
"""The kind of pods that ask by a ResourceClaim."""
BOUND_CLAIMS = "claims by /bind"
"""The same, bound by our scheduler, which grants them then."""
BY_CLAIMS = (CLAIMS, BOUND_CLAIMS)
GROUPS = "groups"
"""The pods of `spread`, started together by eights."""
GROUP_SIZE = 8
CARDS = 8
CREATORS = 16
ROUND_S = 1800.0
IDLE_S = 300.0
"""A new cluster of thousands of nodes, or a round, is written down within this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Settings of a measurement."""

    nodes: int = 0
    """Equal ones."""
    cards: Cards = field(default_factory=dict)
    """Other nodes than equal ones."""
    late: bool = False
    """The nodes bind late."""
    node_percent: int = 0
    """Percent of the nodes to be looked at for a pod; 0: kube-scheduler's own choice."""
    beside: str = ""
    """URL of an extender that runs already, in place of ours."""
    claims: bool = False
    """The cards are DRA devices, too."""


@dataclass(slots=True)
class Bench:
    """The running system, and the pods that were reported to run."""

    api: KubeApi
    kube_scheduler: int
    """Process id of kube-scheduler."""
    servers: Servers
    played: PlayedNodes | None = None
    """Played nodes, where the nodes are ours."""
    cards: int = 0
    """Number of cards of all nodes, where a ledger of ours has them."""
    _ran: dict[str, float] = field(default_factory=dict)
    """When, by uid."""
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    def ran(self, uid: str) -> None:
        """A kubelet reported that the pod runs."""
        self._ran.setdefault(uid, time.monotonic())
        self._more.set()

    def runs(self, uid: str) -> bool:
        """Return whether the pod was reported to run."""
        return uid in self._ran

    async def round(self, kind: str, count: int) -> tuple[list[float], Counter[str]]:
        """Run that many pods together.

        Return the seconds until a kubelet reported each of them to run, in order, and the CPU time
        by program until the last one did.
        """
        os.kill(self.kube_scheduler, signal.SIGSTOP)
        try:
            uids = await self._create(kind, count)
        finally:
            os.kill(self.kube_scheduler, signal.SIGCONT)
        began_s, before = time.monotonic(), _cpu_ms()
        async with asyncio.timeout(ROUND_S):
            while not uids <= self._ran.keys():
                self._more.clear()
                await self._more.wait()
        spent = _cpu_ms() - before
        return sorted(self._ran[uid] - began_s for uid in uids), spent

    async def _create(self, kind: str, count: int) -> set[str]:
        gate = asyncio.Semaphore(CREATORS)
        prefix = f"{kind.split()[0]}-{uuid.uuid4().hex[:6]}"

        async def one(number: int) -> str:
            async with gate:
                made = await self.api.create(
                    "/api/v1/namespaces/default/pods", _pod(f"{prefix}-{number}", kind)
                )
            return str(made["metadata"]["uid"])

        uids = set(await asyncio.gather(*(one(number) for number in range(count))))
        if kind in BY_CLAIMS:
            await claims.until_made(self.api, prefix)
        return uids

    async def wait_until_idle(self) -> None:
        """Wait until everything so far is written, announced and counted."""
        if self.servers.postgres:
            async with asyncio.timeout(IDLE_S):
                await ledger_is_idle(self.servers.postgres, cards=self.cards)
        await asyncio.sleep(REPORTED_S)

    async def begin(self, kind: str) -> None:
        """Reset what would differ between rounds.

        Each round begins with an equal log and an equal heap of the played nodes, which the
        collector would otherwise walk ever longer. Claims are offered cards less what limits hold
        of them; otherwise kube-scheduler would always allocate what the ledger refuses.
        """
        gc.collect()
        gc.freeze()
        if kind in BY_CLAIMS and isinstance(self.played, claims.ClaimNodes):
            await self.played.publish()
        if self.servers.postgres:
            await checkpoint(self.servers.postgres)


def _pod(name: str, kind: str) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": "none"}
    pod: dict[str, Any] = {"metadata": {"name": name}, "spec": {"containers": [container]}}
    if kind == BOUND_CLAIMS:
        claims.with_claim(pod, limits={RESOURCE: "0"})
        pod["spec"]["schedulerName"] = SCHEDULER
        return pod
    if kind == CLAIMS:
        claims.with_claim(pod, limits={})
    if kind in ("without", CLAIMS):
        return pod
    amounts = {RESOURCE: "1", "nvidia.com/gpumem": "2048", "nvidia.com/gpucores": "2"}
    container["resources"] = {"limits": amounts}
    pod["spec"]["schedulerName"] = SCHEDULER
    policy = "spread" if kind == GROUPS else kind
    annotations = {"hami.io/node-scheduler-policy": policy}
    pod["metadata"]["annotations"] = annotations
    if kind == GROUPS:
        prefix, _, number = name.rpartition("-")
        pod["metadata"]["labels"] = {GROUP_LABEL: f"{prefix}-{int(number) // GROUP_SIZE}"}
        annotations["hami.io/group-min"] = str(GROUP_SIZE)
    return pod


@asynccontextmanager
async def system(wanted: Wanted) -> AsyncIterator[Bench]:
    """Everything, with all nodes known to the ledger."""
    assets = find_assets(Path(os.environ["KUBEBUILDER_ASSETS"]))
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        plane = stack.enter_context(control_plane(folder / "plane", assets=assets))
        api = await stack.enter_async_context(open_kube_api(plane.kubeconfig))
        bench = Bench(api=api, kube_scheduler=0, servers=Servers(api=api))
        if wanted.beside:
            url = wanted.beside
            names = _names(wanted.nodes)
            annotated = AnnotatedNodes(
                api, names=names, cards=CARDS, slots=SLOTS, on_running=bench.ran
            )
            await annotated.register()
            await until_it_answers(url, plane.kubeconfig)
            playing = asyncio.create_task(annotated.run())
            stack.callback(playing.cancel)
        else:
            url = await _ours(wanted, folder, plane, bench, stack)
        extenders = scheduler_configuration(
            kubeconfig_path="",
            extender_url=url,
            scheduler_name=SCHEDULER,
            resources=UpOptions().vendors().resource_names,
        )["extenders"]
        plan = plane.scheduler_plan(
            extenders,
            profiles=("default-scheduler", SCHEDULER),
            node_percent=wanted.node_percent,
        )
        kube_scheduler = stack.enter_context(running(plan, die_with_parent=True))
        bench.kube_scheduler = kube_scheduler.value.process.pid
        await bench.wait_until_idle()
        yield bench


async def _ours(
    wanted: Wanted,
    folder: Path,
    plane: ControlPlane,
    bench: Bench,
    stack: AsyncExitStack,
) -> str:
    """Our servers, scheduler and played nodes; the extender's URL."""
    servers = stack.enter_context(data_servers(folder))
    bench.servers = Servers(
        api=bench.api,
        postgres=servers.dsn,
        redis=servers.redis_url,
        nats_monitor=servers.nats_monitor,
    )
    cards = wanted.cards or equal_nodes(_names(wanted.nodes), cards=CARDS)
    bench.cards = sum(map(len, cards.values()))
    bus = await stack.enter_async_context(
        open_bus(NatsSettings(url=servers.nats_url), "played", owns_streams=True)
    )
    nodes = claims.ClaimNodes if wanted.claims else PlayedNodes
    played = nodes(bench.api, bus, cards=cards, late=wanted.late, on_running=bench.ran)
    bench.played = played
    if isinstance(played, claims.ClaimNodes):
        await played.agents.connect(servers.nats_url)
        stack.push_async_callback(played.agents.close)
        await claims.set_up(bench.api)
        stack.enter_context(claims.controllers(plane, folder))
    await played.register()
    playing = asyncio.create_task(played.run())
    stack.callback(playing.cancel)
    started = stack.enter_context(scheduler(folder, servers, plane.kubeconfig))
    await asyncio.to_thread(started.wait_until_ready)
    return started.url


def _cpu_ms() -> Counter[str]:
    """CPU time of this process and of all below it until now, by program."""
    found: Counter[str] = Counter()
    for pid, (name, spent_s) in tree_cpu_s(os.getpid()).items():
        with suppress(OSError):
            if b"hami_scheduler" in Path(f"/proc/{pid}/cmdline").read_bytes():
                name = "scheduler"
        found["played nodes" if pid == os.getpid() else name] += round(1000 * spent_s)
    return found


def _names(count: int) -> list[str]:
    return [f"node-{number}" for number in range(count)]
