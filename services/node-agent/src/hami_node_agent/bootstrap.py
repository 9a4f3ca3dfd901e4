"""Composition root: from settings to a running agent, closed in reverse; pods are left alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from uuid import uuid4

from hamicommon.bus.client import Bus, open_bus
from hamicommon.bus.permissions import agent_user
from hamicommon.cancellation import end
from hamicommon.failpoints import around, faults_of
from hamicommon.grants import load_public_key
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.serving import serving

from hami_node_agent.adapters.cdi_files import CdiFiles
from hami_node_agent.adapters.cgroups import PodCgroups
from hami_node_agent.adapters.host_files import HostFiles
from hami_node_agent.adapters.kubelet import Books
from hami_node_agent.adapters.kubernetes import NodeObject, NodePods
from hami_node_agent.adapters.mps_control import MpsControl
from hami_node_agent.adapters.state_file import StateFile
from hami_node_agent.adopted_answers import AdoptedAnswers
from hami_node_agent.allocating import Allocating
from hami_node_agent.cards import Cards
from hami_node_agent.device_plugin import DevicePlugin
from hami_node_agent.domain.cards import WHOLE, Offer
from hami_node_agent.domain.container_spec import AnswerPolicy
from hami_node_agent.domain.health import xid_policy
from hami_node_agent.domain.mps import MpsPolicy
from hami_node_agent.draining import Draining
from hami_node_agent.driver import Driver, open_driver
from hami_node_agent.exposition import registry_of
from hami_node_agent.finding import GrantFinder
from hami_node_agent.grants_feed import GrantsFeed
from hami_node_agent.holdings import HoldingsService
from hami_node_agent.inventory import BINDING_ANNOTATION, InventoryTeller, keep_annotation
from hami_node_agent.late_binding import LateBinding
from hami_node_agent.late_wiring import binding_way
from hami_node_agent.libraries import OldLibraries
from hami_node_agent.monitoring import Monitoring, monitoring
from hami_node_agent.moving import LedgerMoves
from hami_node_agent.mps import Mps
from hami_node_agent.node_state import NodeState
from hami_node_agent.plugin import Plugin
from hami_node_agent.ports import CardMoves
from hami_node_agent.prestarting import PreStarting
from hami_node_agent.readiness import ReadinessService
from hami_node_agent.registration import Registration
from hami_node_agent.reporting import Reports, send_reports
from hami_node_agent.routes import make_routes
from hami_node_agent.settings import Settings
from hami_node_agent.sweeping import Sweeper
from hami_node_agent.unmanaged import UnmanagedPods

logger = logging.getLogger(__name__)

DISTRIBUTION = "hami-node-agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """The running agent."""

    port: int
    """Of /metrics, /healthz and /readyz."""
    state: NodeState
    cards: Cards
    registration: Registration


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outside:
    """Connections and files."""

    api: KubeApi
    bus: Bus
    driver: Driver
    cdi: CdiFiles
    files: HostFiles
    library: Path
    pods: NodePods
    books: Books
    moves: CardMoves
    state: NodeState
    agent_id: str


@asynccontextmanager
async def open_agent(settings: Settings) -> AsyncIterator[Agent]:
    """Runs while the block runs; a background task that dies ends the block.

    NATS, the API server and the kubelet may be away. Raises: Unavailable when there is no driver,
    the host can't be written or the metrics address is taken; InvalidRequest for bad settings.
    """
    async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
        outside = await _open_outside(settings, stack)
        cards = _cards(settings, outside)
        await cards.discover()
        reports = Reports(settings.node_name)
        feed = GrantsFeed(
            outside.bus,
            outside.state,
            reports=reports,
            node=settings.node_name,
            snapshot_interval_s=settings.snapshot_interval_s,
        )
        node = NodeObject(outside.api, settings.node_name)
        way = await binding_way(settings, node)
        slices = _plugin(settings, outside, cards, feed, reports, late=way.late)
        # With the MIG strategy `single` the count resource is the instances'.
        plugins = {settings.resource_name: slices, **outside.driver.mig_plugins}
        registrations = _registrations(settings, plugins)
        registration = registrations[settings.resource_name]
        mps = _mps(settings)
        draining = Draining(outside.state, outside.pods, drain_s=settings.drain_s)
        watched = _monitoring(settings, outside, cards)
        app = make_routes(
            registry_of(*watched.collectors),
            lambda: _not_ready(registrations, draining, mps),
        )
        port = await stack.enter_async_context(serving(app, settings.metrics_bind))
        loops = {
            "pods": outside.pods.run(),
            "cards": cards.run(),
            "grants": feed.run(),
            **{f"registration of {name}": each.run() for name, each in registrations.items()},
            "adopted": AdoptedAnswers(outside.state, books=outside.books).run(),
            "holdings": HoldingsService(
                outside.bus,
                outside.state,
                books=outside.books,
                pods=outside.pods,
                node=settings.node_name,
            ).run(),
            "readiness": ReadinessService(
                outside.bus,
                plugins[settings.resource_name],
                node=settings.node_name,
                reachable=registration.reachable,
                hindrance=lambda: _hindrance(draining, mps),
                late=way.late,
            ).run(),
            "inventory": _inventory(settings, outside, cards).run(),
            "annotation": keep_annotation(cards, node, more={BINDING_ANNOTATION: str(way)}),
            "reports": send_reports(outside.state, outside.bus, node=settings.node_name),
            "sweep": _sweeper(settings, outside, reports).run(),
            "libraries": OldLibraries(
                outside.files, outside.books, described=outside.cdi.mounted_paths
            ).run(),
            **watched.loops,
        }
        if mps is not None:
            loops["MPS"] = mps.run()
        if outside.driver.mig is not None:
            loops["MIG cards"] = outside.driver.mig.run()
        tasks = [group.create_task(loop, name=name) for name, loop in loops.items()]
        logger.info("agent runs", extra={"node": settings.node_name, "port": port})
        try:
            yield Agent(port=port, state=outside.state, cards=cards, registration=registration)
            await draining.drain()
        finally:
            # Inside: the loops use our connections until they are done.
            await end(tasks)


def _registrations(
    settings: Settings, plugins: Mapping[str, DevicePlugin]
) -> dict[str, Registration]:
    return {
        resource: Registration(
            plugin,
            socket_dir=settings.kubelet_socket_dir,
            socket_name=f"nvidia-{resource.partition('/')[2]}.sock",
            resource_name=resource,
            tells_kubelet=settings.register_with_kubelet,
        )
        for resource, plugin in plugins.items()
    }


def _mps(settings: Settings) -> Mps | None:
    if settings.operating_mode != "mps":
        return None
    return Mps(
        MpsControl(
            settings.mps_control,
            pipe_dir=settings.mps_dir / "pipe",
            log_dir=settings.mps_dir / "log",
        )
    )


def _mps_policy(settings: Settings) -> MpsPolicy | None:
    if settings.operating_mode != "mps":
        return None
    shm_dir = "" if settings.mps_shm_dir is None else str(settings.mps_shm_dir)
    return MpsPolicy(pipe_dir=str(settings.mps_dir / "pipe"), shm_dir=shm_dir)


def _hindrance(draining: Draining, mps: Mps | None) -> str:
    if draining.begun:
        return "its agent is stopping"
    return "" if mps is None else mps.problem


def _not_ready(
    registrations: Mapping[str, Registration], draining: Draining, mps: Mps | None
) -> str:
    waiting = [name for name, each in registrations.items() if not each.registered]
    missing = f"not registered with the kubelet: {', '.join(waiting)}" if waiting else ""
    return _hindrance(draining, mps) or missing


async def _open_outside(settings: Settings, stack: AsyncExitStack) -> _Outside:
    faults = faults_of(settings.failpoints.file)
    cdi = CdiFiles(settings.cdi_dir)
    files = HostFiles(
        base=settings.hook_path / "vgpu",
        state_dir=settings.state_dir,
        lock_dir=settings.lock_dir,
        oversubscribe=settings.device_memory_scaling > 1,
        cdi=cdi,
    )
    library = await asyncio.to_thread(
        files.install,
        settings.library_path,
        version=version(DISTRIBUTION),
        preload_path=str(settings.container_hook_path / "vgpu" / "libvgpu.so"),
    )
    key_file = settings.grant_public_key_file
    key = None if key_file is None else await asyncio.to_thread(load_public_key, key_file)
    store = StateFile(settings.state_dir / "state.json")
    saved = await asyncio.to_thread(store.load)
    driver = await open_driver(settings, stack)
    api = await stack.enter_async_context(open_kube_api(settings.kubernetes.kubeconfig))
    bus = around(
        await stack.enter_async_context(open_bus(settings.nats, agent_user(settings.node_name))),
        "node_bus",
        faults,
    )
    pods = NodePods(api, node=settings.node_name, resource=settings.resource_name, key=key)
    state = NodeState(around(store, "node_state", faults, blocking=True), saved)
    books = Books(
        checkpoint=settings.checkpoint_path,
        pod_resources=settings.pod_resources_socket,
        resource=settings.resource_name,
        uid_of=pods.uid_of,
        api_uid=pods.api_uid,
        card_at=state.card_at,
    )
    return _Outside(
        api=api,
        bus=bus,
        driver=driver,
        cdi=cdi,
        files=around(files, "node_files", faults, blocking=True),
        library=library,
        pods=around(pods, "node_pods", faults),
        books=around(books, "node_books", faults),
        moves=around(LedgerMoves(bus, node=settings.node_name), "node_moves", faults),
        state=state,
        agent_id=str(uuid4()),
    )


def _cards(settings: Settings, outside: _Outside) -> Cards:
    return Cards(
        outside.driver.probe,
        outside.state,
        offer=Offer(
            split_count=settings.device_split_count,
            memory_scaling=settings.device_memory_scaling,
            core_scaling=settings.device_core_scaling,
            mode=settings.operating_mode,
        ),
        xids=xid_policy(settings.disable_health_checks, settings.enable_health_checks),
        probe_interval_s=settings.probe_interval_s,
        xid_quiet_s=settings.xid_quiet_s,
    )


def _plugin(
    settings: Settings,
    outside: _Outside,
    cards: Cards,
    feed: GrantsFeed,
    reports: Reports,
    *,
    late: bool,
) -> Plugin:
    finder = GrantFinder(
        outside.state,
        source=feed,
        pods=outside.pods,
        books=outside.books,
        node=settings.node_name,
        wait_s=settings.grant_wait_s,
    )
    adopts = settings.unmanaged_pods == "adopt"
    answers = _answers(settings, outside)
    late_binding = LateBinding(
        outside.state,
        books=outside.books,
        source=feed,
        pods=outside.pods,
        files=outside.files,
        devices=outside.cdi,
        reports=reports,
        answers=answers,
    )
    allocating = Allocating(
        outside.state,
        finder=finder,
        pods=outside.pods,
        files=outside.files,
        reports=reports,
        answers=answers,
        adopts_unmanaged=adopts,
    )
    prestarting = PreStarting(
        outside.state,
        books=outside.books,
        source=feed,
        pods=outside.pods,
        files=outside.files,
        reports=reports,
        adopted=AdoptedAnswers(outside.state, books=outside.books),
        moves=outside.moves,
        unmanaged=UnmanagedPods(
            outside.bus, outside.state, pods=outside.pods, node=settings.node_name
        )
        if adopts
        else None,
    )
    return Plugin(
        cards=cards,
        allocating=allocating,
        prestarting=prestarting,
        numa_topology=settings.enable_numa_topology,
        preferred_allocation=settings.preferred_allocation and not late,
        late=late_binding if late else None,
    )


def _answers(settings: Settings, outside: _Outside) -> AnswerPolicy:
    return AnswerPolicy(
        container_base=PurePosixPath(settings.container_hook_path / "vgpu"),
        host_base=PurePosixPath(outside.files.base),
        library=PurePosixPath(outside.library),
        lock_dir=PurePosixPath(settings.lock_dir),
        enforced=settings.operating_mode != WHOLE,
        mps=_mps_policy(settings),
        oversubscribe=settings.device_memory_scaling > 1,
        log_level=settings.libcuda_log_level,
        disable_core_limit=settings.disable_core_limit,
        licensed=(outside.files.base / "license").exists(),
        devices=outside.driver.devices,
    )


def _inventory(settings: Settings, outside: _Outside, cards: Cards) -> InventoryTeller:
    return InventoryTeller(
        cards,
        outside.bus,
        node=settings.node_name,
        agent_id=outside.agent_id,
        heartbeat_s=settings.heartbeat_s,
    )


def _monitoring(settings: Settings, outside: _Outside, cards: Cards) -> Monitoring:
    return monitoring(
        settings,
        probe=outside.driver.probe,
        cards=cards,
        state=outside.state,
        pods=outside.pods,
        bus=outside.bus,
        files=outside.files,
        containers_dir=outside.files.base / "containers",
        agent_id=outside.agent_id,
        version=version(DISTRIBUTION),
    )


def _sweeper(settings: Settings, outside: _Outside, reports: Reports) -> Sweeper:
    return Sweeper(
        outside.state,
        pods=outside.pods,
        books=outside.books,
        processes=PodCgroups(settings.cgroup_root),
        files=outside.files,
        reports=reports,
        interval_s=settings.sweep_interval_s,
    )
