"""Decide whether to offer cards by Dynamic Resource Allocation, and construct the driver.

Part of the composition root, like `agent.py`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from hamicommon.errors import InvalidRequest
from hamicommon.fault_injection import around
from hamicommon.process.bulkhead import Bulkhead

from hami_node_agent.adapters.kubernetes.resource_api import ResourceClaims, ResourceSlices
from hami_node_agent.allocation.binding_way import BindingWay
from hami_node_agent.allocation.node_ports import DescribedSlices
from hami_node_agent.bootstrap.connections import AgentConnections
from hami_node_agent.bootstrap.gpu_plugin import answers_of, node_ports
from hami_node_agent.bootstrap.late_binding import (
    NodeVersions,
    cdi_obstacle,
    kubelet_version,
    proof_of,
)
from hami_node_agent.config.settings import Settings
from hami_node_agent.devices.mig_partition import MIG
from hami_node_agent.devices.offer import WHOLE
from hami_node_agent.dra.preparation import ClaimPreparation, LostRecords, keep_passed_on
from hami_node_agent.dra.publisher import SlicePublisher, withdraw
from hami_node_agent.dra.server import (
    DraService,
    DriverSockets,
    HealthService,
    RegistrationService,
    serve_driver,
)
from hami_node_agent.grants.feed import GrantsFeed
from hami_node_agent.grants.reports import Reports
from hami_node_agent.inventory.tracker import CardTracker

logger = logging.getLogger(__name__)

SINCE = (1, 36)
"""First Kubernetes in which part of a device can be claimed without feature gates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraDriver:
    """Loops of the driver; without it, one that removes an earlier agent's slices."""

    on: bool
    loops: Mapping[str, Coroutine[Any, Any, None]]


async def dra_driver(
    settings: Settings,
    connections: AgentConnections,
    cards: CardTracker,
    feed: GrantsFeed,
    reports: Reports,
    node: NodeVersions,
    bulkhead: Bulkhead,
) -> DraDriver:
    """Construct the driver. Raises: InvalidRequest if `dra` is `on` but impossible."""
    if settings.dra == "off":
        return DraDriver(on=False, loops={})
    reason = await obstacle_of(settings, node)
    if reason and settings.dra == "on":
        raise InvalidRequest(f"dra on: {reason}; set dra to off or auto")
    store = ResourceSlices(connections.api, settings.node_name, bulkhead)
    if reason:
        logger.warning("Publishing no DRA devices", extra={"reason": reason})
        return DraDriver(on=False, loops={"DRA slices": withdraw(store, settings.node_name)})
    sockets = DriverSockets(settings.kubelet_dir)
    ports = node_ports(connections, feed, reports)
    slices = DescribedSlices(
        ports,
        devices=around(connections.cdi, "node_cdi", connections.faults, blocking=True),
        answers=answers_of(settings, connections),
    )
    preparation = ClaimPreparation(
        ports,
        slices,
        api=around(ResourceClaims(connections.api), "node_claims", connections.faults),
        bus=connections.bus,
        node_name=settings.node_name,
    )
    publisher = SlicePublisher(
        store,
        cards,
        connections.state,
        node=settings.node_name,
    )
    driver = serve_driver(
        sockets,
        DraService(preparation),
        HealthService(cards, pool=settings.node_name),
        RegistrationService(sockets.claims, publisher.on_registered),
    )
    return DraDriver(
        on=True,
        loops={
            "DRA driver": driver,
            "DRA slices": publisher.run(),
            "DRA records": keep_passed_on(connections.state),
            "DRA lost records": LostRecords(ports, slices).run(),
        },
    )


async def obstacle_of(settings: Settings, node: NodeVersions) -> str:
    """Return why the driver can't run; empty if it can."""
    if settings.operating_mode in (WHOLE, MIG):
        return f"operating_mode is {settings.operating_mode}, which does not share cards by claims"
    obstacle = cdi_obstacle(settings)
    if obstacle:
        return obstacle
    version = await kubelet_version(node)
    if _minor(version) < SINCE:
        return f"the kubelet is {version or 'of unknown version'}, and parts of cards need 1.36"
    if settings.dra == "auto":
        proof = await proof_of(settings, node)
        return "" if proof.late else proof.reason
    return ""


def _minor(version: str) -> tuple[int, int]:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def relies_on_proof(settings: Settings, way: BindingWay, driver: DraDriver) -> bool:
    """Return whether a configured feature depends on the runtime's proven CDI support."""
    late = way.late and settings.binding == "auto"
    return late or (driver.on and settings.dra == "auto")
