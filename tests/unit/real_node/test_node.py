"""A real kubelet runs a pod, and leaves the machine as it was."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hamicommon.k8s.client import open_kube_api
from hamicommon.k8s.types import Json
from hamilocal.supervisor.plan import ServerError

from tests.control_plane import Assets, control_plane, node_user
from tests.real_node import kubelet
from tests.real_node.kubelet import kubelet_config
from tests.real_node.node import WORKLOAD_IMAGE, real_node, workload_image

PODS = "/api/v1/namespaces/default/pods"


@pytest.mark.parametrize(
    ("version", "runtime", "cgroup"),
    [((1, 20), False, False), ((1, 27), True, False), ((1, 36), True, True)],
)
def test_newer_kubelets_are_given_more_in_the_file(
    version: tuple[int, int], runtime: bool, cgroup: bool
) -> None:
    config = kubelet_config(version=version, runtime="unix:///x", port=1, health_port=2)
    assert ("containerRuntimeEndpoint" in config) == runtime
    assert ("failCgroupV1" in config) == cgroup


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Sockets allow no long paths."""
    folder = Path(tempfile.mkdtemp(prefix="hami-node-", dir="/run"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def node_assets(kubernetes_assets: Assets) -> Assets:
    """The binaries, where a kubelet can run."""
    if os.geteuid() != 0:
        pytest.skip("a real kubelet needs root")
    if not (kubernetes_assets.folder / "kubelet").exists():
        pytest.skip(f"{kubernetes_assets.folder} holds no kubelet")
    if shutil.which("containerd") is None:
        pytest.skip("containerd is not installed")
    return kubernetes_assets


@pytest.mark.e2e
async def test_a_pod_runs_and_nothing_is_left(node_assets: Assets, short_folder: Path) -> None:
    before = _traces()
    await asyncio.to_thread(_run_a_pod, node_assets, short_folder)
    assert not kubelet.ROOT.exists()
    assert _traces() == before
    assert str(short_folder) not in Path("/proc/self/mountinfo").read_text()
    left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _names(path, short_folder)]
    assert left == []


@pytest.mark.e2e
def test_the_folder_of_another_kubelet_is_left_alone(
    node_assets: Assets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet, "ROOT", tmp_path)
    (tmp_path / "pods").mkdir()
    with (
        pytest.raises(ServerError, match="belongs to another kubelet"),
        real_node(
            tmp_path / "node",
            binary=node_assets.folder / "kubelet",
            version=node_assets.version,
            kubeconfig=tmp_path,
            name="real",
        ),
    ):
        pass


def _run_a_pod(assets: Assets, folder: Path) -> None:
    user = node_user("real")
    with (
        control_plane(folder / "plane", assets=assets, users=[user]) as plane,
        real_node(
            folder / "node",
            binary=assets.folder / "kubelet",
            version=assets.version,
            kubeconfig=plane.server.kubeconfigs[user.name],
            name="real",
            images=[workload_image(folder / "workload.tar", native=None)],
        ) as node,
    ):
        asyncio.run(_until_it_has_run(plane.kubeconfig))
        assert node.pod_log("default", "one", "main") == "hello from one\n"
        assert node.device_plugins.joinpath("kubelet.sock").is_socket()
        assert node.pod_resources.is_socket()


async def _until_it_has_run(kubeconfig: Path) -> None:
    command = ["/bin/bash", "-c", "echo hello from $(cat /etc/hostname); sleep 1"]
    container = {"name": "main", "image": WORKLOAD_IMAGE, "command": command}
    sleeper = {"name": "main", "image": WORKLOAD_IMAGE, "command": ["/bin/sleep", "1000"]}
    async with open_kube_api(kubeconfig) as api, asyncio.timeout(90):
        for name, main in (("one", container), ("two", sleeper)):
            await api.create(PODS, _pod(name, main))
        while (await api.get(f"{PODS}/one"))["status"].get("phase") != "Succeeded":
            await asyncio.sleep(0.1)
        while (await api.get(f"{PODS}/two"))["status"].get("phase") != "Running":
            await asyncio.sleep(0.1)


def _pod(name: str, container: Json) -> Json:
    spec = {"restartPolicy": "Never", "nodeName": "real", "containers": [container]}
    return {"metadata": {"name": name}, "spec": spec}


def _traces() -> set[Path]:
    places = (Path("/run/netns"), Path("/var/log/pods"), Path("/sys/class/net"))
    return {path for place in places if place.exists() for path in place.iterdir()}


def _names(path: Path, folder: Path) -> bool:
    try:
        return str(folder) in path.read_text()
    except OSError:
        return False
