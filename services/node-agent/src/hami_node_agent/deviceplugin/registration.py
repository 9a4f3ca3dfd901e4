"""Serve device plugins, and register them at the kubelet.

The kubelet forgets plugins when it restarts, and removes all sockets in its directory.

One cycle: listen on our socket, register, then check until kubelet.sock is another file than the
one we registered with, or our own socket is gone. Leaving closes the server and does not affect
pods.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
from hamicommon.errors import HamiError, InvalidRequest, Unavailable
from hamicommon.kubelet_api._generated import deviceplugin_pb2, deviceplugin_pb2_grpc
from hamicommon.process.backoff import Backoff

from hami_node_agent.deviceplugin.servicer import VERSION, DevicePluginService

logger = logging.getLogger(__name__)

KUBELET_SOCKET = "kubelet.sock"
REGISTER_TIMEOUT_S = 5.0
# Calls that run when the server ends may finish: an Allocate waits for its grant.
STOP_GRACE_S = 10.0
# Part of it, for calls that come after those have finished.
_LAST_CALLS_S = 1.0
# HAMi's budget: a server that fails more often than this within an hour is not going to work.
MAX_CRASHES = 5
CRASH_WINDOW_S = 3600.0
RETRY_FIRST_S = 0.2
RETRY_LAST_S = 5.0
# Two stats per check. An inotify watch woke fifty times a second, because its library polls for
# signals: 0.16 % of a core for its thread.
LOOK_S = 0.2
# sun_path, with its closing zero (Linux unix(7)).
MAX_SOCKET_PATH = 107

Identity = tuple[int, int, int]


async def keep_serving(cycle: Callable[[], Awaitable[None]], *, name: str) -> None:
    """Run `cycle` again each time it returns, until cancelled.

    A cycle serves until the kubelet restarts or the socket is replaced.

    Raises: Unavailable when `cycle` fails too often within an hour.
    """
    failed_at: deque[float] = deque()
    while True:
        try:
            await cycle()
        except (OSError, RuntimeError, grpc.RpcError) as exc:
            logger.exception("Failed to serve", extra={"server": name})
            now = time.monotonic()
            failed_at.append(now)
            while now - failed_at[0] > CRASH_WINDOW_S:
                failed_at.popleft()
            if len(failed_at) > MAX_CRASHES:
                raise Unavailable(
                    f"the {name}'s server failed {len(failed_at)} times within an hour, "
                    f"last with: {exc}"
                ) from exc
            await asyncio.sleep(RETRY_FIRST_S)


class KubeletRegistration:
    """Keeps one plugin served, and registered at the kubelet."""

    def __init__(
        self,
        plugin: DevicePluginService,
        *,
        socket_dir: Path,
        socket_name: str,
        resource_name: str,
    ) -> None:
        """Prepare the registration. Raises: InvalidRequest if the socket's path is too long."""
        self._plugin = plugin
        self._dir = socket_dir
        self._socket = socket_dir / socket_name
        self._kubelet = socket_dir / KUBELET_SOCKET
        self._resource_name = resource_name
        self.registered = False
        self._own: Identity | None = None
        if len(str(self._socket)) > MAX_SOCKET_PATH:
            raise InvalidRequest(
                f"kubelet_dir: {self._socket} is longer than {MAX_SOCKET_PATH} bytes, "
                "more than a Unix socket's path may have"
            )

    def reachable(self) -> bool:
        """Return whether the plugin is registered and its socket exists."""
        return self.registered and self._own is not None and _identity(self._socket) == self._own

    async def run(self) -> None:
        """Serve and register until cancelled. Raises: Unavailable if serving fails too often."""
        await keep_serving(self._cycle, name="device plugin")

    async def _cycle(self) -> None:
        await asyncio.to_thread(self._clear_socket)
        server = grpc.aio.server()
        deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server(self._plugin, server)  # type: ignore[no-untyped-call]  # generated
        server.add_insecure_port(f"unix:{self._socket}")
        await server.start()
        try:
            # Before the kubelet calls it: a socket removed in between would never be missed.
            self._own = _identity(self._socket)
            kubelet = await self._register()
            self.registered = True
            logger.info("Registered with the kubelet", extra={"resource": self._resource_name})
            await self._until_changed(kubelet)
        finally:
            self.registered = False
            # Before the stream: with its end the kubelet closes the connection under a call.
            if not await self._plugin.calls_finished(STOP_GRACE_S - _LAST_CALLS_S):
                logger.warning("Stopping while a call of the kubelet runs")
            self._plugin.end_streams()
            await server.stop(grace=_LAST_CALLS_S)

    def _clear_socket(self) -> None:
        self._dir.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)

    async def _register(self) -> Identity:
        """Register, waiting for the kubelet. Return the identity of its socket."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
        while True:
            before = _identity(self._kubelet)
            if before is not None:
                try:
                    await self._call_register()
                except HamiError as exc:
                    logger.warning(
                        "Retrying to register with the kubelet", extra={"error": str(exc)}
                    )
                else:
                    return before
            if _identity(self._socket) is None:
                raise OSError(f"{self._socket} was removed before it was registered")
            await asyncio.sleep(backoff.next_s())

    async def _call_register(self) -> None:
        request = deviceplugin_pb2.RegisterRequest(
            version=VERSION,
            endpoint=self._socket.name,
            resource_name=self._resource_name,
            options=self._plugin.options,
        )
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}") as channel:
            stub = deviceplugin_pb2_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]  # generated
            try:
                await stub.Register(request, timeout=REGISTER_TIMEOUT_S)
            except grpc.aio.AioRpcError as exc:
                raise Unavailable(f"kubelet: Register: {exc.details()}") from exc

    async def _until_changed(self, kubelet: Identity) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if _identity(self._socket) != self._own:
                logger.info("Restarting the server: the plugin socket was removed")
                return
            now = _identity(self._kubelet)
            # A kubelet that is merely away has not forgotten us yet; a new socket has.
            if now is not None and now != kubelet:
                logger.info("Registering again: the kubelet has restarted")
                return


def _identity(path: Path) -> Identity | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - ten times a second, at a third of the price
    except OSError:
        return None
    # An inode number may be reused immediately.
    return found.st_dev, found.st_ino, found.st_ctime_ns
