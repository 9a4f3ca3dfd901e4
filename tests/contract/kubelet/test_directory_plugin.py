"""The example `directory-plugin` as a process, in front of real and emulated kubelets."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from hamicommon.k8s.client import open_kube_api

from tests.contract.kubelet.nodes import emulator_plan, open_node
from tests.contract.kubelet.plugin_kubelet import PluginKubelet
from tests.processes import running
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.integration
RESOURCE = "example.com/gopher"
EXAMPLE = Path(__file__).parents[3] / "examples/directory-plugin/directory_plugin.py"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a Unix socket's may have 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="hami-dir-") as made:
        for name in ("gophers", "device-plugins", "node"):
            (Path(made) / name).mkdir()
        yield Path(made)


@pytest.fixture
async def kubelet(folder: Path) -> AsyncIterator[PluginKubelet]:
    kubelet = PluginKubelet(folder / "device-plugins")
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


class Process:
    """The plugin."""

    def __init__(self, folder: Path, sockets: Path, *arguments: str) -> None:
        self.log = folder / "plugin.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, str(EXAMPLE), "--resource", RESOURCE),
                    *("--directory", str(folder / "gophers"), "--socket-dir", str(sockets)),
                    *arguments,
                ],
                stdout=log,
                stderr=log,
            )

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(timeout=PATIENCE_S)


Start = Callable[..., Process]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def start_plugin(*arguments: str, sockets: Path = folder / "device-plugins") -> Process:
            process = Process(folder, sockets, *arguments)
            stack.callback(process.process.wait)
            stack.callback(process.process.kill)
            return process

        yield start_plugin


async def test_files_come_and_go_as_devices(
    folder: Path, kubelet: PluginKubelet, start: Start
) -> None:
    for name in ("g1", "g2", ".hidden"):
        (folder / "gophers" / name).touch()
    (folder / "gophers" / "burrow").mkdir()
    start()
    await eventually(lambda: kubelet.registered == [(RESOURCE, "example.com-gopher.sock")])

    async with kubelet.listening():
        await eventually(lambda: kubelet.lists == [{"g1": "Healthy", "g2": "Healthy"}])
        (folder / "gophers/g3").touch()
        await eventually(lambda: set(kubelet.lists[-1]) == {"g1", "g2", "g3"})
        (folder / "gophers/g1").unlink()
        await eventually(lambda: set(kubelet.lists[-1]) == {"g2", "g3"})


async def test_a_directory_that_is_away_has_no_devices_and_may_come_back(
    folder: Path, kubelet: PluginKubelet, start: Start
) -> None:
    start()
    await eventually(lambda: kubelet.registered)

    async with kubelet.listening():
        await eventually(lambda: kubelet.lists == [{}])
        (folder / "gophers").rmdir()
        (folder / "gophers").mkdir()
        (folder / "gophers/g1").touch()
        await eventually(lambda: kubelet.lists[-1] == {"g1": "Healthy"})


async def test_a_container_reads_the_names_of_its_files(
    folder: Path, kubelet: PluginKubelet, start: Start
) -> None:
    for name in ("g1", "g2"):
        (folder / "gophers" / name).touch()
    start("--env", "Gopher={ids}", "--env", "BURROW=yes")
    await eventually(lambda: kubelet.registered)

    answer = await kubelet.allocate("g2", "g1")

    assert dict(answer.envs) == {"Gopher": "g1,g2", "BURROW": "yes"}
    with pytest.raises(grpc.aio.AioRpcError, match="g9: not devices of this resource"):
        await kubelet.allocate("g9")


async def test_it_registers_with_a_restarted_kubelet_and_ends_cleanly(
    folder: Path, kubelet: PluginKubelet, start: Start
) -> None:
    process = start()
    await eventually(lambda: len(kubelet.registered) == 1)

    await kubelet.stop()
    await kubelet.start()
    await eventually(lambda: len(kubelet.registered) == 2)
    async with kubelet.listening():
        await eventually(lambda: kubelet.lists)
        code = await asyncio.to_thread(process.stop)
        await asyncio.wait_for(kubelet.stream_ended.wait(), PATIENCE_S)

    assert code == 0
    assert "Traceback" not in process.log.read_text()


@pytest.mark.parametrize("argument", ["Gopher", "={ids}"])
async def test_a_variable_without_name_or_value_is_refused(start: Start, argument: str) -> None:
    process = start("--env", argument)

    assert await asyncio.to_thread(process.process.wait, PATIENCE_S) == 1
    assert "NAME=VALUE is wanted" in process.log.read_text().splitlines()[-1]


@pytest.mark.native
async def test_a_pod_asks_for_a_gopher_and_has_it(folder: Path, start: Start) -> None:
    for name in ("g1", "g2"):
        (folder / "gophers" / name).touch()
    plan, kubeconfig = emulator_plan(folder)
    with running(plan, die_with_parent=True):
        async with (
            open_kube_api(kubeconfig) as api,
            open_node("node-1", folder / "node", kubeconfig, api) as node,
        ):
            start("--env", "Gopher={ids}", sockets=node.device_plugins)

            async def is_shown() -> bool:
                return (await node.object())["status"]["allocatable"].get(RESOURCE) == "2"

            await eventually(is_shown)
            limits = {"limits": {RESOURCE: "1"}}
            script = "echo $Gopher; exec sleep 1000"
            pod = await node.run(
                "a",
                {
                    "name": "main",
                    "image": "none",
                    "command": ["sh", "-c", script],
                    "resources": limits,
                },
            )

            async def is_printed() -> bool:
                return await node.phase("a") == "Running" and node.log(pod) != ""

            await eventually(is_printed)
            assert node.log(pod).strip() in {"g1", "g2"}
