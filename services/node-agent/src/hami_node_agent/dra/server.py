"""Serves the DRA driver on the two sockets where the kubelet looks for it.

    <plugins>/gpu.hami.io/dra.sock            claims and health
    <plugins_registry>/gpu.hami.io-reg.sock   who we are

The kubelet follows the second folder itself, also across its own restarts; the driver only has to
keep its sockets there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import grpc
from hamicommon.dra.devices import DRIVER
from hamicommon.errors import InvalidRequest
from hamicommon.kubelet_api._generated import (
    dra_pb2_grpc,
    drahealth_pb2_grpc,
    pluginregistration_pb2_grpc,
)

from hami_node_agent.deviceplugin.registration import (
    LOOK_S,
    MAX_SOCKET_PATH,
    RETRY_FIRST_S,
    STOP_GRACE_S,
    CrashBudget,
)
from hami_node_agent.dra.servicer import DraService, HealthService, RegistrationService

logger = logging.getLogger(__name__)


class DriverSockets:
    """Where the driver is served, under the kubelet's folder."""

    def __init__(self, kubelet_dir: Path) -> None:
        """Raises: InvalidRequest when a path is longer than a socket's may be."""
        self.claims = kubelet_dir / "plugins" / DRIVER / "dra.sock"
        self.registration = kubelet_dir / "plugins_registry" / f"{DRIVER}-reg.sock"
        for path in (self.claims, self.registration):
            if len(str(path)) > MAX_SOCKET_PATH:
                raise InvalidRequest(
                    f"kubelet_dir: {path} is longer than {MAX_SOCKET_PATH} bytes, "
                    "more than a Unix socket's path may have"
                )

    def clear(self) -> None:
        """Removes what an agent before us left (blocking)."""
        for path in (self.registration, self.claims):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)

    def present(self) -> bool:
        """Whether both are there."""
        return self.claims.exists() and self.registration.exists()


async def serve_driver(
    sockets: DriverSockets,
    claims: DraService,
    health: HealthService,
    registration: RegistrationService,
) -> None:
    """Until cancelled. Raises: Unavailable when serving fails too often."""
    budget = CrashBudget()
    while True:
        try:
            await _cycle(sockets, claims, health, registration)
        except (OSError, RuntimeError, grpc.RpcError) as exc:
            logger.exception("DRA driver's server failed")
            budget.spend(time.monotonic(), exc)
            await asyncio.sleep(RETRY_FIRST_S)


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
        logger.info("DRA driver's socket removed, restarting the server")
    finally:
        await registrar.stop(grace=0)
        await server.stop(grace=STOP_GRACE_S)
