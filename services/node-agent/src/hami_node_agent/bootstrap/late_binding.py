"""Choose the way of binding at the start, and watch that it stays possible.

Part of the composition root, like `agent.py`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from hamicommon.errors import HamiError, InvalidRequest, Unavailable

from hami_node_agent.adapters.kubelet.container_runtime import ContainerRuntime, read_crio_cdi_dirs
from hami_node_agent.allocation.binding_way import BindingWay, RuntimeReport, named_by, way_of
from hami_node_agent.config.settings import Settings
from hami_node_agent.devices.device_list import Strategy

logger = logging.getLogger(__name__)

# The Node is wanted once; without it the lock way is always right.
NODE_WAIT_S = 10.0
# A runtime that was restarted without CDI starts late-bound containers without limits.
PROOF_INTERVAL_S = 30.0


class NodeVersions(Protocol):
    """Source of the versions that our Node reports."""

    async def versions(self) -> tuple[str, str]:
        """Return the versions of kubelet and container runtime. Raises: HamiError."""


async def binding_way(settings: Settings, node: NodeVersions) -> BindingWay:
    """Choose the way of binding. Raises: InvalidRequest if late binding is set but impossible."""
    way = await _binding_way(settings, node)
    logger.info("Selected the binding mode", extra={"way": str(way)})
    return way


async def _binding_way(settings: Settings, node: NodeVersions) -> BindingWay:
    if settings.binding == "lock":
        return BindingWay(late=False, reason="binding is set to lock")
    obstacle = cdi_obstacle(settings)
    if settings.binding == "late":
        if obstacle:
            raise InvalidRequest(f"binding late: {obstacle}; set binding to lock")
        by = named_by(await kubelet_version(node))
        return BindingWay(late=True, reason="binding is set to late", named_by=by)
    if obstacle:
        return BindingWay(late=False, reason=obstacle)
    return await proof_of(settings, node)


async def kubelet_version(node: NodeVersions) -> str:
    """Return the kubelet's version; empty if the API server does not answer."""
    try:
        async with asyncio.timeout(NODE_WAIT_S):
            return (await node.versions())[0]
    except (HamiError, TimeoutError) as exc:
        logger.warning("Failed to read the kubelet's version", extra={"error": str(exc)})
        return ""


async def proof_of(settings: Settings, node: NodeVersions) -> BindingWay:
    """Return late binding if kubelet and runtime are proven to support CDI, else the reason."""
    try:
        async with asyncio.timeout(NODE_WAIT_S):
            kubelet, runtime_version = await node.versions()
            runtime = await _runtime(settings, runtime_version)
    except (HamiError, TimeoutError) as exc:
        logger.warning(
            "Passing slices at Allocate: CDI support is not proven", extra={"error": str(exc)}
        )
        reason = str(exc) or f"the Node did not answer within {NODE_WAIT_S:g} s"
        return BindingWay(late=False, reason=f"nothing is proven at the agent's start: {reason}")
    return way_of(kubelet, runtime, cdi_dir=str(settings.cdi_dir))


async def _runtime(settings: Settings, runtime_version: str) -> RuntimeReport:
    """Return the runtime's report, or what the Node states about it (`containerd://2.1.9`).

    Raises: Unavailable.
    """
    name, _, version = runtime_version.partition("://")
    if name == "cri-o":
        directories = await asyncio.to_thread(read_crio_cdi_dirs, settings.crio_config_dir)
        return RuntimeReport(name=name, version=version, cdi_dirs=directories)
    if settings.cri_socket is not None:
        return await ContainerRuntime(settings.cri_socket).report()
    return RuntimeReport(name=name, version=version)


async def keep_proven(settings: Settings, node: NodeVersions, *, relied_on: bool) -> None:
    """Run while the proof holds; an unavailable runtime proves nothing.

    `relied_on`: whether something rests on the proof. Raises: Unavailable when the runtime now runs
    without CDI: the agent ends, and the next one takes the lock way and publishes no ResourceSlice.
    """
    while relied_on:
        await asyncio.sleep(PROOF_INTERVAL_S)
        try:
            kubelet, runtime_version = await node.versions()
            now = way_of(
                kubelet, await _runtime(settings, runtime_version), cdi_dir=str(settings.cdi_dir)
            )
        except HamiError as exc:
            logger.warning("Retrying to prove CDI support", extra={"error": str(exc)})
            continue
        if not now.late:
            raise Unavailable(f"slices were passed by CDI and no longer can be: {now.reason}")
    await asyncio.Event().wait()


def cdi_obstacle(settings: Settings) -> str:
    """Return why slices can't be described by CDI files; empty if they can."""
    if set(settings.device_list_strategy) & {Strategy.CDI_ANNOTATIONS, Strategy.CDI_CRI}:
        return "device_list_strategy names cards by CDI, which a CDI file can't do"
    return ""
