"""Open and close a running agent from its settings; pods continue without it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from hamicommon import device_config, telemetry
from hamicommon.access.reviews import scrape_access
from hamicommon.k8s.annotations import BINDING
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.shutdown import end

from hami_node_agent.adapters.host.processes import PodCgroups
from hami_node_agent.adapters.kubernetes.node import NodeObject
from hami_node_agent.adapters.mps_daemon import Mps, MpsControl
from hami_node_agent.adoption.adopted import AdoptedAnswers
from hami_node_agent.adoption.holdings import HoldingsService
from hami_node_agent.bootstrap.connections import AgentConnections, open_connections
from hami_node_agent.bootstrap.dra import dra_driver, relies_on_proof
from hami_node_agent.bootstrap.gpu_plugin import plugin_of
from hami_node_agent.bootstrap.late_binding import binding_way, keep_proven
from hami_node_agent.bootstrap.mig import mig_instances, require_possible
from hami_node_agent.bootstrap.usage import monitoring
from hami_node_agent.cleanup.garbage_collection import Sweeper, remove_leftovers
from hami_node_agent.cleanup.installed_files import FileRestorer, OldLibraries
from hami_node_agent.config.settings import Settings
from hami_node_agent.config.sources import environment
from hami_node_agent.deviceplugin.drain import Drain
from hami_node_agent.deviceplugin.readiness import ReadinessService
from hami_node_agent.deviceplugin.registration import KubeletRegistration
from hami_node_agent.deviceplugin.servicer import DevicePluginService
from hami_node_agent.devices.health import xid_policy
from hami_node_agent.devices.offer import Offer
from hami_node_agent.grants.feed import GrantsFeed
from hami_node_agent.grants.reports import Reports, send_reports
from hami_node_agent.inventory.capacity import keep_capacity, require_marker
from hami_node_agent.inventory.publisher import InventoryPublisher, keep_annotation, warn_of_links
from hami_node_agent.inventory.tracker import CardTracker
from hami_node_agent.metrics.collectors import registry_of
from hami_node_agent.metrics.health import (
    authority_families,
    binding_families,
    bulkhead_families,
    file_families,
    mig_families,
    removal_families,
)
from hami_node_agent.metrics.http_server import make_routes, serving

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_agent(settings: Settings) -> AsyncIterator[None]:
    """Run the agent inside `async with`; a background task that fails ends the block.

    NATS, the API server and the kubelet may be away. Raises: Unavailable when there is no driver,
    the host can't be written or the metrics address is taken; InvalidRequest for bad settings.
    """
    require_possible(settings)
    require_marker(settings.report_capacity, environment())
    async with asyncio.TaskGroup() as group, AsyncExitStack() as stack:
        bulkhead = Bulkhead()
        connections = await open_connections(settings, stack, bulkhead)
        mig = mig_instances(settings, connections)
        if mig is not None:
            # What an earlier run of ours left is gone before anything is offered in its place.
            await mig.settle()
        cards = _cards(settings, connections)
        await cards.discover()
        reports = Reports(settings.node_name)
        feed = GrantsFeed(
            connections.bus,
            connections.state,
            reports=reports,
            node=settings.node_name,
            snapshot_interval_s=settings.snapshot_interval_s,
            bulkhead=bulkhead,
        )
        node = NodeObject(connections.api, settings.node_name)
        way = await binding_way(settings, node)
        slices = plugin_of(settings, connections, cards, feed, reports, way, mig)
        # With the MIG strategy `single` the count resource is the instances'.
        plugins = {settings.resource_name: slices, **connections.driver.mig_plugins}
        registrations = _registrations(settings, plugins)
        registration = registrations[settings.resource_name]
        mps = Mps(MpsControl(settings.mps_dir)) if settings.operating_mode == "mps" else None
        restorer = FileRestorer(connections.files, connections.state, bulkhead=bulkhead)
        draining = Drain(connections.state, connections.pods, drain_s=settings.drain_s)
        watched = monitoring(
            settings,
            connections,
            cards,
            # Of pods that a HAMi before us made them for, they are in the annotation.
            mig_devices=connections.pods.mig_devices if mig is None else mig.devices,
            bulkhead=bulkhead,
        )
        registry = registry_of(
            *watched.metrics,
            partial(binding_families, way),
            partial(removal_families, connections.files),
            partial(file_families, restorer),
            partial(bulkhead_families, bulkhead),
            partial(
                authority_families,
                {
                    "kubernetes": lambda: connections.api.trusted_until,
                    "nats": lambda: connections.bus.trusted_until,
                },
            ),
            *([] if mig is None else [partial(mig_families, mig)]),
        )
        registry.set_target_info(telemetry.target_info("hami-node-agent", settings.telemetry))
        app = make_routes(
            registry,
            lambda: _not_ready(registrations, draining, mps) or restorer.problem,
            None
            if settings.scrape_audience is None
            else scrape_access(connections.api, audience=settings.scrape_audience),
        )
        port = await stack.enter_async_context(serving(app, settings.metrics_bind))
        driver = await dra_driver(settings, connections, cards, feed, reports, node, bulkhead)
        loops = {
            "pods": connections.pods.run(),
            "cards": cards.run(),
            "grants": feed.run(),
            **{f"registration of {name}": each.run() for name, each in registrations.items()},
            "adopted": AdoptedAnswers(
                connections.state, kubelet_state=connections.kubelet_state
            ).run(),
            "holdings": HoldingsService(
                connections.bus,
                connections.state,
                kubelet_state=connections.kubelet_state,
                pods=connections.pods,
                node=settings.node_name,
            ).run(),
            "readiness": ReadinessService(
                connections.bus,
                plugins[settings.resource_name],
                node=settings.node_name,
                reachable=registration.reachable,
                not_ready_reason=lambda: _not_ready_reason(draining, mps) or restorer.problem,
                on_ready=draining.expect_grant,
                take=feed.take,
                late=way.late,
            ).run(),
            "inventory": InventoryPublisher(
                cards,
                connections.bus,
                node=settings.node_name,
                agent_id=connections.agent_id,
                heartbeat_s=settings.heartbeat_s,
                bulkhead=bulkhead,
            ).run(),
            "annotation": keep_annotation(cards, node, more={BINDING: str(way)}, bulkhead=bulkhead),
            "binding": keep_proven(
                settings, node, relied_on=relies_on_proof(settings, way, driver)
            ),
            "links": warn_of_links(cards, node, bulkhead=bulkhead),
            "reports": send_reports(connections.state, connections.bus, node=settings.node_name),
            "sweep": Sweeper(
                connections.state,
                pods=connections.pods,
                kubelet_state=connections.kubelet_state,
                processes=PodCgroups(settings.cgroup_root),
                files=connections.files,
                reports=reports,
                interval_s=settings.sweep_interval_s,
                bulkhead=bulkhead,
            ).run(),
            "leftovers": remove_leftovers(connections.files.remove_given_up),
            "files": restorer.run(),
            "libraries": OldLibraries(
                connections.files,
                connections.kubelet_state.mounted_paths,
                described=connections.cdi.mounted_paths,
            ).run(),
            **watched.loops,
            **driver.loops,
        }
        if settings.report_capacity != "off":
            config = await asyncio.to_thread(device_config.load, settings.device_config_file)
            loops["capacity"] = keep_capacity(
                cards,
                node,
                config.nvidia or device_config.NvidiaConfig(),
                removes=settings.report_capacity == "remove",
            )
        if mps is not None:
            loops["MPS"] = mps.run()
        if mig is not None:
            loops["MIG instances"] = mig.run()
        if connections.driver.mig is not None:
            loops["MIG cards"] = connections.driver.mig.run()
        tasks = [group.create_task(loop, name=name) for name, loop in loops.items()]
        logger.info("Started the agent", extra={"node": settings.node_name, "port": port})
        try:
            yield
            await draining.drain()
        finally:
            # Inside: the loops use our connections until they are done.
            await end(tasks)
        await watched.usage.flush()


def _registrations(
    settings: Settings, plugins: Mapping[str, DevicePluginService]
) -> dict[str, KubeletRegistration]:
    return {
        resource: KubeletRegistration(
            plugin,
            socket_dir=settings.device_plugins_dir,
            socket_name=f"nvidia-{resource.partition('/')[2]}.sock",
            resource_name=resource,
        )
        for resource, plugin in plugins.items()
    }


def _not_ready_reason(draining: Drain, mps: Mps | None) -> str:
    if draining.begun:
        return "its agent is stopping"
    return "" if mps is None else mps.problem


def _not_ready(
    registrations: Mapping[str, KubeletRegistration], draining: Drain, mps: Mps | None
) -> str:
    waiting = [name for name, each in registrations.items() if not each.registered]
    missing = f"not registered with the kubelet: {', '.join(waiting)}" if waiting else ""
    return _not_ready_reason(draining, mps) or missing


def _cards(settings: Settings, connections: AgentConnections) -> CardTracker:
    return CardTracker(
        connections.driver.probe,
        connections.state,
        offer=Offer(
            split_count=settings.device_split_count,
            memory_scaling=settings.device_memory_scaling,
            core_scaling=settings.device_core_scaling,
            mode=settings.operating_mode,
        ),
        xids=xid_policy(settings.health_checks),
        probe_interval_s=settings.probe_interval_s,
        xid_quiet_s=settings.xid_quiet_s,
        on_found=connections.driver.names.learn,
    )
