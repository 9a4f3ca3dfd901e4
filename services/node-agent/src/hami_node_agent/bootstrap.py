"""Composition root: from settings to a running agent, closed in reverse; pods are left alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from uuid import uuid4

from hamicommon.bus.client import Bus, open_bus
from hamicommon.bus.permissions import agent_user
from hamicommon.cancellation import end
from hamicommon.errors import Unavailable
from hamicommon.failpoints import around, faults_of
from hamicommon.grants import load_public_key
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.serving import serving

from hami_node_agent.adapters.cgroups import PodCgroups
from hami_node_agent.adapters.device_files import card_files, control_files, require_imex
from hami_node_agent.adapters.host_files import HostFiles
from hami_node_agent.adapters.kubelet import Books
from hami_node_agent.adapters.kubernetes import NodeObject, NodePods
from hami_node_agent.adapters.nvml import open_nvml
from hami_node_agent.adapters.state_file import StateFile
from hami_node_agent.adopted_answers import AdoptedAnswers
from hami_node_agent.allocating import Allocating
from hami_node_agent.card_filter import FilteredProbe, Hidden
from hami_node_agent.cards import Cards
from hami_node_agent.domain.cards import WHOLE, Offer
from hami_node_agent.domain.container_spec import AnswerPolicy
from hami_node_agent.domain.device_list import DeviceListPolicy
from hami_node_agent.domain.health import xid_policy
from hami_node_agent.draining import Draining
from hami_node_agent.exposition import registry_of
from hami_node_agent.finding import GrantFinder
from hami_node_agent.grants_feed import GrantsFeed
from hami_node_agent.holdings import HoldingsService
from hami_node_agent.inventory import InventoryTeller, keep_annotation
from hami_node_agent.libraries import OldLibraries
from hami_node_agent.monitoring import Monitoring, monitoring
from hami_node_agent.node_state import NodeState
from hami_node_agent.plugin import Plugin
from hami_node_agent.ports import DeviceProbe
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
# With fail_on_init_error off; HAMi's plugin waits as long after a failed start.
DRIVER_RETRY_S = 30.0


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
    probe: DeviceProbe
    files: HostFiles
    library: Path
    pods: NodePods
    books: Books
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
        plugin = await _plugin(settings, outside, cards, feed, reports)
        registration = Registration(
            plugin,
            socket_dir=settings.kubelet_socket_dir,
            socket_name=settings.socket_name,
            resource_name=settings.resource_name,
            tells_kubelet=settings.register_with_kubelet,
        )
        draining = Draining(outside.state, outside.pods, drain_s=settings.drain_s)
        watched = _monitoring(settings, outside)
        app = make_routes(
            registry_of(*watched.collectors),
            lambda: _not_ready(registration, draining),
        )
        port = await stack.enter_async_context(serving(app, settings.metrics_bind))
        node = NodeObject(outside.api, settings.node_name)
        loops = {
            "pods": outside.pods.run(),
            "cards": cards.run(),
            "grants": feed.run(),
            "registration": registration.run(),
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
                plugin,
                node=settings.node_name,
                reachable=registration.reachable,
                stopping=lambda: draining.begun,
            ).run(),
            "inventory": _inventory(settings, outside, cards).run(),
            "annotation": keep_annotation(cards, node),
            "reports": send_reports(outside.state, outside.bus, node=settings.node_name),
            "sweep": _sweeper(settings, outside, reports).run(),
            "libraries": OldLibraries(outside.files, outside.books).run(),
            **watched.loops,
        }
        tasks = [group.create_task(loop, name=name) for name, loop in loops.items()]
        logger.info("agent runs", extra={"node": settings.node_name, "port": port})
        try:
            yield Agent(port=port, state=outside.state, cards=cards, registration=registration)
            await draining.drain()
        finally:
            # Inside: the loops use our connections until they are done.
            await end(tasks)


def _not_ready(registration: Registration, draining: Draining) -> str:
    if draining.begun:
        return "stopping"
    return "" if registration.registered else "not registered with the kubelet"


async def _open_outside(settings: Settings, stack: AsyncExitStack) -> _Outside:
    faults = faults_of(settings.failpoints.file)
    files = HostFiles(
        base=settings.hook_path / "vgpu",
        state_dir=settings.state_dir,
        lock_dir=settings.lock_dir,
        oversubscribe=settings.device_memory_scaling > 1,
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
    probe = await _driver(settings, stack)
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
        probe=probe,
        files=around(files, "node_files", faults, blocking=True),
        library=library,
        pods=around(pods, "node_pods", faults),
        books=around(books, "node_books", faults),
        state=state,
        agent_id=str(uuid4()),
    )


async def _driver(settings: Settings, stack: AsyncExitStack) -> DeviceProbe:
    while True:
        nvml = open_nvml(
            timeout_s=settings.nvml_timeout_s,
            sysfs_root=settings.sysfs_root,
            fallback_memory_mib=settings.preconfigured_device_memory_mib,
        )
        try:
            probe = await stack.enter_async_context(nvml)
        except Unavailable as exc:
            if settings.fail_on_init_error:
                raise
            logger.warning("waiting for a driver", extra={"error": str(exc)})
            await asyncio.sleep(DRIVER_RETRY_S)
        else:
            hidden = Hidden(
                uuids=frozenset(settings.hidden_uuids), indexes=frozenset(settings.hidden_indexes)
            )
            return FilteredProbe(probe, hidden)


def _cards(settings: Settings, outside: _Outside) -> Cards:
    return Cards(
        outside.probe,
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


async def _plugin(
    settings: Settings, outside: _Outside, cards: Cards, feed: GrantsFeed, reports: Reports
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
    allocating = Allocating(
        outside.state,
        finder=finder,
        pods=outside.pods,
        files=outside.files,
        reports=reports,
        answers=await _answers(settings, outside),
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
        preferred_allocation=settings.preferred_allocation,
    )


async def _answers(settings: Settings, outside: _Outside) -> AnswerPolicy:
    return AnswerPolicy(
        container_base=PurePosixPath(settings.container_hook_path / "vgpu"),
        host_base=PurePosixPath(outside.files.base),
        library=PurePosixPath(outside.library),
        lock_dir=PurePosixPath(settings.lock_dir),
        enforced=settings.operating_mode != WHOLE,
        oversubscribe=settings.device_memory_scaling > 1,
        log_level=settings.libcuda_log_level,
        disable_core_limit=settings.disable_core_limit,
        licensed=(outside.files.base / "license").exists(),
        devices=await _device_list(settings, outside),
    )


async def _device_list(settings: Settings, outside: _Outside) -> DeviceListPolicy:
    cards = await outside.probe.cards()
    passed = settings.pass_device_specs
    if settings.imex_required:
        await asyncio.to_thread(require_imex, settings.imex_channel_ids, settings.dev_root)
    return DeviceListPolicy(
        strategies=frozenset(settings.device_list_strategy),
        id_strategy=settings.device_id_strategy,
        index_of={card.uuid: card.index for card in cards},
        imex_channels=settings.imex_channel_ids,
        gdrcopy=settings.gdrcopy_enabled,
        gds=settings.gds_enabled,
        mofed=settings.mofed_enabled,
        cdi_annotation_prefix=settings.cdi_annotation_prefix,
        device_files=control_files(settings.dev_root) if passed else None,
        card_files=card_files(cards, settings.dev_root) if passed else None,
    )


def _inventory(settings: Settings, outside: _Outside, cards: Cards) -> InventoryTeller:
    return InventoryTeller(
        cards,
        outside.bus,
        node=settings.node_name,
        agent_id=outside.agent_id,
        heartbeat_s=settings.heartbeat_s,
    )


def _monitoring(settings: Settings, outside: _Outside) -> Monitoring:
    return monitoring(
        settings,
        probe=outside.probe,
        state=outside.state,
        pods=outside.pods,
        bus=outside.bus,
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
