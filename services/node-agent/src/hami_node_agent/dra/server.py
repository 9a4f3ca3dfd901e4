"""Serve the kubelet's gRPC APIs of a DRA driver on its two sockets.

    <plugins>/gpu.hami.io/dra.sock            claims and the health of their devices
    <plugins_registry>/gpu.hami.io-reg.sock   the driver's name and versions

The kubelet follows the second folder itself, also across its own restarts; the driver only has to
keep its sockets there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
from hamicommon.dra.devices import DRIVER, device_name
from hamicommon.errors import HamiError, InvalidRequest
from hamicommon.kubelet_api._generated import (
    dra_pb2,
    dra_pb2_grpc,
    drahealth_pb2,
    drahealth_pb2_grpc,
    pluginregistration_pb2,
    pluginregistration_pb2_grpc,
)

from hami_node_agent.deviceplugin.registration import (
    LOOK_S,
    MAX_SOCKET_PATH,
    STOP_GRACE_S,
    keep_serving,
)
from hami_node_agent.dra.preparation import ClaimPreparation, ClaimRef
from hami_node_agent.inventory.tracker import CardTracker

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
# The short form; the gRPC service is k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin.
VERSIONS = ("v1.DRAPlugin",)
# Health that is older counts as unknown; it is sent again well before.
HEALTH_TIMEOUT_S = 60
HEALTH_INTERVAL_S = 20.0


class DraService(dra_pb2_grpc.DRAPluginServicer):
    """Service that prepares claims of pods on this node."""

    def __init__(self, preparation: ClaimPreparation) -> None:
        self._preparation = preparation

    async def NodePrepareResources(  # noqa: N802 - the protocol's name
        self, request: dra_pb2.NodePrepareResourcesRequest, context: Context
    ) -> dra_pb2.NodePrepareResourcesResponse:
        """Prepare the claims; the answer has devices or an error for each."""
        response = dra_pb2.NodePrepareResourcesResponse()
        for claim in request.claims:
            response.claims[claim.uid].CopyFrom(await self._prepare_claim(claim))
        return response

    async def _prepare_claim(self, claim: dra_pb2.Claim) -> dra_pb2.NodePrepareResourceResponse:
        ref = ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid)
        try:
            found = await self._preparation.prepare(ref)
        except HamiError as exc:
            return dra_pb2.NodePrepareResourceResponse(error=str(exc))
        return dra_pb2.NodePrepareResourceResponse(
            devices=[
                dra_pb2.Device(
                    request_names=[each.device.main_request],
                    pool_name=each.device.pool,
                    device_name=each.device.device,
                    cdi_device_ids=list(each.cdi_devices),
                    share_id=each.device.share_id or None,
                )
                for each in found
            ]
        )

    async def NodeUnprepareResources(  # noqa: N802 - the protocol's name
        self, request: dra_pb2.NodeUnprepareResourcesRequest, context: Context
    ) -> dra_pb2.NodeUnprepareResourcesResponse:
        """Do nothing; records end with their pods.

        The ledger releases when the pod has ended, and `cleanup/` removes its directories and
        descriptions once nothing of the pod runs.
        """
        response = dra_pb2.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            response.claims[claim.uid].SetInParent()
        return response


class HealthService(drahealth_pb2_grpc.DRAResourceHealthServicer):
    """Service that reports cards' health, for the status of pods that hold them."""

    def __init__(self, cards: CardTracker, *, pool: str) -> None:
        self._cards = cards
        self._pool = pool

    async def NodeWatchResources(  # noqa: N802 - the protocol's name
        self, request: drahealth_pb2.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[drahealth_pb2.NodeWatchResourcesResponse]:
        """Stream all cards on every change, and before their health would become stale."""
        while True:
            seen = self._cards.changed.version
            yield self._all()
            await self._cards.changed.wait(seen, HEALTH_INTERVAL_S)

    def _all(self) -> drahealth_pb2.NodeWatchResourcesResponse:
        states = (drahealth_pb2.UNHEALTHY, drahealth_pb2.HEALTHY)
        return drahealth_pb2.NodeWatchResourcesResponse(
            devices=[
                drahealth_pb2.DeviceHealth(
                    device=drahealth_pb2.DeviceIdentifier(
                        pool_name=self._pool, device_name=device_name(card.uuid)
                    ),
                    health=states[card.healthy],
                    last_updated_time=int(time.time()),
                    health_check_timeout_seconds=HEALTH_TIMEOUT_S,
                    message=card.health_reason,
                )
                for card in self._cards.devices()
            ]
        )


class RegistrationService(pluginregistration_pb2_grpc.RegistrationServicer):
    """Service by which the kubelet identifies the driver."""

    def __init__(self, endpoint: Path, registered: Callable[[], None]) -> None:
        self._endpoint = endpoint
        self._registered = registered
        self.accepted = asyncio.Event()

    async def GetInfo(  # noqa: N802 - the protocol's name
        self, request: pluginregistration_pb2.InfoRequest, context: Context
    ) -> pluginregistration_pb2.PluginInfo:
        """Return the driver's name, socket and versions."""
        return pluginregistration_pb2.PluginInfo(
            type="DRAPlugin",
            name=DRIVER,
            endpoint=str(self._endpoint),
            supported_versions=VERSIONS,
        )

    async def NotifyRegistrationStatus(  # noqa: N802 - the protocol's name
        self, request: pluginregistration_pb2.RegistrationStatus, context: Context
    ) -> pluginregistration_pb2.RegistrationStatusResponse:
        """Record whether the kubelet accepted the driver."""
        if request.plugin_registered:
            logger.info("Registered the DRA driver with the kubelet", extra={"driver": DRIVER})
            self.accepted.set()
            self._registered()
        else:
            logger.error(
                "Failed to register the DRA driver: the kubelet refused it",
                extra={"error": request.error},
            )
            self.accepted.clear()
        return pluginregistration_pb2.RegistrationStatusResponse()


class DriverSockets:
    """Paths of the driver's sockets, under the kubelet's folder."""

    def __init__(self, kubelet_dir: Path) -> None:
        """Raises: InvalidRequest if a path is too long for a socket."""
        self.claims = kubelet_dir / "plugins" / DRIVER / "dra.sock"
        self.registration = kubelet_dir / "plugins_registry" / f"{DRIVER}-reg.sock"
        for path in (self.claims, self.registration):
            if len(str(path)) > MAX_SOCKET_PATH:
                raise InvalidRequest(
                    f"kubelet_dir: {path} is longer than {MAX_SOCKET_PATH} bytes, "
                    "more than a Unix socket's path may have"
                )

    def clear(self) -> None:
        """Delete the sockets of an earlier agent (blocking)."""
        for path in (self.registration, self.claims):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)

    def present(self) -> bool:
        """Return whether both sockets exist."""
        return self.claims.exists() and self.registration.exists()


async def serve_driver(
    sockets: DriverSockets,
    claims: DraService,
    health: HealthService,
    registration: RegistrationService,
) -> None:
    """Serve the DRA driver until cancelled. Raises: Unavailable if that fails too often."""
    await keep_serving(lambda: _cycle(sockets, claims, health, registration), name="DRA driver")


async def _cycle(
    sockets: DriverSockets,
    claims: DraService,
    health: HealthService,
    registration: RegistrationService,
) -> None:
    await asyncio.to_thread(sockets.clear)
    server = grpc.aio.server()
    dra_pb2_grpc.add_DRAPluginServicer_to_server(claims, server)  # type: ignore[no-untyped-call]  # generated
    drahealth_pb2_grpc.add_DRAResourceHealthServicer_to_server(health, server)  # type: ignore[no-untyped-call]  # generated
    registrar = grpc.aio.server()
    pluginregistration_pb2_grpc.add_RegistrationServicer_to_server(registration, registrar)  # type: ignore[no-untyped-call]  # generated
    server.add_insecure_port(f"unix:{sockets.claims}")
    registrar.add_insecure_port(f"unix:{sockets.registration}")
    try:
        await server.start()
        # After the other, because the kubelet comes as soon as it sees this one.
        await registrar.start()
        while True:
            await asyncio.sleep(LOOK_S)
            if not sockets.present():
                break
        logger.info("Restarting the server: the DRA driver's socket was removed")
    finally:
        await registrar.stop(grace=0)
        await server.stop(grace=STOP_GRACE_S)
