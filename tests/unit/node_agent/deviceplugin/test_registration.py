"""A kubelet's view of the socket when the agent stops."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hami_node_agent.deviceplugin.registration import KubeletRegistration
from hami_node_agent.deviceplugin.servicer import AdvertisedDevice, DevicePluginService
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.grants.state import Signal
from hamicommon.errors import Conflict
from kubelocal.kubelet.devices.plugins import PluginClient
from kubelocal.kubelet.devices.state import PluginError

from tests.waiting import PATIENCE_S


class Slow(DevicePluginService):
    """Answers when `release` is set; `refused` then, if there is such a reason."""

    def __init__(self) -> None:
        super().__init__(Signal(), checks_starts=True)
        self.called, self.release = asyncio.Event(), asyncio.Event()
        self.refused = ""

    def devices(self) -> list[AdvertisedDevice]:
        return [AdvertisedDevice(device_id="card-0")]

    async def answers(self, requests: Sequence[frozenset[str]]) -> list[ContainerSpec]:
        await self._wait_for_release()
        return [ContainerSpec(envs={"GIVEN": "card-0"}, mounts=()) for _ in requests]

    async def check(self, ids: frozenset[str]) -> None:
        await self._wait_for_release()

    async def _wait_for_release(self) -> None:
        self.called.set()
        await self.release.wait()
        if self.refused:
            raise Conflict(self.refused)


class Kubelet:
    """Hangs up when its stream has ended, as kubelets do (devicemanager's `runClient`)."""

    def __init__(self, socket: Path) -> None:
        self.plugin = PluginClient(socket, allocate_timeout_s=PATIENCE_S)
        self.listed = asyncio.Event()

    async def listen(self) -> None:
        with suppress(PluginError):
            async for _ in self.plugin.device_lists():
                self.listed.set()
        await self.plugin.close()


@pytest.fixture
async def limited() -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE_S):
        yield


async def stopping(
    service: Slow, folder: Path, call: str
) -> tuple[asyncio.Task[None], asyncio.Task[None], asyncio.Task[object]]:
    """The agent's loop, which is being stopped, the kubelet's, and its call, which runs."""
    registration = KubeletRegistration(
        service,
        socket_dir=folder,
        socket_name="plugin.sock",
        resource_name="vendor.example/card",
    )
    serving = asyncio.create_task(registration.run())
    kubelet = Kubelet(folder / "plugin.sock")
    await kubelet.plugin.options()
    listening = asyncio.create_task(kubelet.listen())
    await kubelet.listed.wait()
    running: asyncio.Task[object] = asyncio.create_task(getattr(kubelet.plugin, call)(["card-0"]))
    await service.called.wait()
    serving.cancel()
    return serving, listening, running


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("call", ["allocate", "pre_start"])
async def test_a_call_that_runs_gets_its_answer_before_the_kubelet_hangs_up(
    call: str, tmp_path: Path
) -> None:
    service = Slow()
    serving, listening, running = await stopping(service, tmp_path, call)
    for _ in range(50):
        await asyncio.sleep(0)
    assert not listening.done()
    service.release.set()

    await running
    await asyncio.wait([serving, listening])
    assert serving.cancelled()


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("call", ["allocate", "pre_start"])
async def test_so_does_one_that_is_refused(call: str, tmp_path: Path) -> None:
    service = Slow()
    service.refused = "no room"
    serving, listening, running = await stopping(service, tmp_path, call)
    service.release.set()

    with pytest.raises(PluginError, match="no room"):
        await running
    await asyncio.wait([serving, listening])
    assert await service.calls_finished(0)
