"""Which way containers of this node get their slices: settled once, at the start.

Part of the composition root, like `bootstrap.py`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from hamicommon.errors import HamiError, InvalidRequest

from hami_node_agent.domain.device_list import Strategy
from hami_node_agent.domain.late import BindingWay, way_of
from hami_node_agent.settings import Settings

logger = logging.getLogger(__name__)

# The Node is wanted once; without it the lock way is always right.
NODE_WAIT_S = 10.0


class NodeVersions(Protocol):
    """What our Node says of itself."""

    async def versions(self) -> tuple[str, str]:
        """Of the kubelet and of the container runtime. Raises: HamiError."""


async def binding_way(settings: Settings, node: NodeVersions) -> BindingWay:
    """Raises: InvalidRequest when late binding is wanted with what it can't do."""
    if settings.binding == "lock":
        return BindingWay(late=False, reason="binding is set to lock")
    hindrance = _hindrance(settings)
    if settings.binding == "late":
        if hindrance:
            raise InvalidRequest(f"binding late: {hindrance}; set binding to lock")
        return BindingWay(late=True, reason="binding is set to late")
    if hindrance:
        return BindingWay(late=False, reason=hindrance)
    try:
        async with asyncio.timeout(NODE_WAIT_S):
            kubelet, runtime = await node.versions()
    except (HamiError, TimeoutError) as exc:
        logger.warning("node not read", extra={"error": str(exc)})
        return BindingWay(late=False, reason="the Node could not be read at the agent's start")
    way = way_of(kubelet, runtime)
    logger.info("binding", extra={"way": str(way)})
    return way


def _hindrance(settings: Settings) -> str:
    if set(settings.device_list_strategy) & {Strategy.CDI_ANNOTATIONS, Strategy.CDI_CRI}:
        return "device_list_strategy names cards by CDI, which a CDI file can't do"
    if settings.unmanaged_pods == "adopt":
        return "unmanaged_pods adopt needs an answer at Allocate"
    return ""
