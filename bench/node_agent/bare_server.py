"""A bare gRPC server that answers one message to every Allocate: the baseline."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from hamicommon.kubelet_api._generated import deviceplugin_pb2 as api
from hamicommon.kubelet_api._generated import deviceplugin_pb2_grpc

_POLL_S = 0.05


class Echo(deviceplugin_pb2_grpc.DevicePluginServicer):
    """Answers one message to every Allocate."""

    def __init__(self, answer: bytes) -> None:
        self._answer = api.AllocateResponse.FromString(answer)

    async def Allocate(self, request: object, context: object) -> Any:  # noqa: N802 - gRPC's name
        """The message."""
        del request, context
        return self._answer


async def serve_echo(socket: str) -> None:
    """The bare server; the message comes on stdin."""
    server = grpc.aio.server()
    add: Any = deviceplugin_pb2_grpc.add_DevicePluginServicer_to_server
    add(Echo(sys.stdin.buffer.read()), server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    await server.wait_for_termination()


@asynccontextmanager
async def stub_of(socket: Path) -> AsyncIterator[Any]:
    """A client on one channel, as the kubelet keeps it."""
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        await channel.channel_ready()
        make: Any = deviceplugin_pb2_grpc.DevicePluginStub
        yield make(channel)


async def time_call(call: Any, request: Any) -> tuple[float, Any]:
    """Return the milliseconds and the answer."""
    started = time.perf_counter()
    answer = await call(request, timeout=30)
    return (time.perf_counter() - started) * 1000, answer


async def echoed_ms(folder: Path, answer: bytes, device_id: str, calls: int) -> list[float]:
    """The same calls to the bare server."""
    socket = folder / "echo.sock"
    command = [sys.executable, "-m", "bench.node_agent", "--echo", str(socket)]
    echo = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: ASYNC220 - nothing else runs
    assert echo.stdin is not None
    try:
        echo.stdin.write(answer)
        echo.stdin.close()
        while not socket.exists():  # noqa: ASYNC110 - it has no other sign
            await asyncio.sleep(_POLL_S)
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=[device_id])]
        )
        async with stub_of(socket) as stub:
            return [(await time_call(stub.Allocate, request))[0] for _ in range(calls)]
    finally:
        echo.terminate()
        echo.wait(timeout=30)
