"""Removal clears a host and its Node of the agent's traces after the last pod with a slice."""

import asyncio
from pathlib import Path

import pytest
from hami_node_agent.bootstrap import removal
from hami_node_agent.bootstrap.removal import WRITTEN_ON_THE_NODE, NodeRemoval
from hami_node_agent.config.settings import Settings

from tests.integration.node_agent.conftest import ApiPods
from tests.integration.node_agent.machine import NODE
from tests.waiting import PATIENCE_S, eventually

OTHERS = "example.com/mine"


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    return path


@pytest.fixture
def host(folder: Path) -> Path:
    """A host with traces of an agent, a tenant and other vendors."""
    host = folder / "host"
    write(host / "usr" / "local" / "vgpu" / "libvgpu.so.1")
    write(host / "var" / "lib" / "hami" / "node-agent" / "limits" / "n" / "limits")
    write(host / "cdi" / "hami.io-slice_n.json")
    write(host / "cdi" / "nvidia.yaml")
    write(host / "kubelet" / "plugins" / "gpu.hami.io" / "dra.sock")
    write(host / "kubelet" / "plugins" / "gpu.example.com" / "dra.sock")
    write(host / "kubelet" / "device-plugins" / "nvidia-gpu.sock")
    write(host / "kubelet" / "device-plugins" / "kubelet.sock")
    return host


@pytest.fixture
def settings(host: Path) -> Settings:
    return Settings.model_validate(
        {
            "node_name": NODE,
            "nats": {"url": "nats://nobody"},
            "hook_path": host / "usr" / "local",
            "state_dir": host / "var" / "lib" / "hami" / "node-agent",
            "cdi_dir": host / "cdi",
            "kubelet_dir": host / "kubelet",
            "report_capacity": "on",
        }
    )


def list_files(host: Path) -> set[str]:
    return {str(path.relative_to(host)) for path in host.rglob("*") if not path.is_dir()}


async def test_a_host_is_left_as_it_was_after_its_last_pod_with_a_slice(
    api_pods: ApiPods, host: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "LOOK_S", 0.05)
    await api_pods.create("granted", annotations={"hami.io/grant": "signed"})
    await api_pods.create("restored", "plain")
    # Its annotation may be gone; its folder is not.
    region = host / "usr" / "local" / "vgpu" / "containers" / f"{api_pods.uids['restored']}_main"
    write(region / "n.cache")
    outside = write(host.parent / "theirs")
    (region / "link").symlink_to(outside)
    before = list_files(host)
    node = f"/api/v1/nodes/{NODE}"
    notes = {OTHERS: "x", **dict.fromkeys(WRITTEN_ON_THE_NODE, "x")}
    await api_pods.api.patch(node, {"metadata": {"annotations": notes}})

    kubelets = {"cpu": "4", "nvidia.com/gpu": "10"}
    listed = {**kubelets, "nvidia.com/gpumem": "40000", "nvidia.com/gpucores": "100"}
    await api_pods.api.patch(
        f"{node}/status", {"status": {"capacity": listed, "allocatable": listed}}
    )

    work = NodeRemoval(api_pods.api, settings)
    running = asyncio.create_task(work.run())
    both = "pods that hold slices: default/granted, default/restored"
    await eventually(lambda: work.waits_for == both)
    await api_pods.delete("granted")
    await eventually(lambda: work.waits_for == "pods that hold slices: default/restored")
    assert list_files(host) == before
    await api_pods.delete("restored")
    async with asyncio.timeout(PATIENCE_S):
        await running

    assert work.waits_for == ""
    assert list_files(host) == {
        "cdi/nvidia.yaml",
        "kubelet/plugins/gpu.example.com/dra.sock",
        "kubelet/device-plugins/kubelet.sock",
    }
    assert not (host / "usr" / "local" / "vgpu").exists()
    assert not (host / "var" / "lib" / "hami").exists()
    assert not (host / "kubelet" / "plugins" / "gpu.hami.io").exists()
    assert outside.exists()
    left = await api_pods.api.get(node)
    assert [left["status"][part] for part in ("capacity", "allocatable")] == [kubelets] * 2
    found = left["metadata"]["annotations"]
    assert {key: found[key] for key in found if not key.startswith("kubernetes.io/")} == {
        OTHERS: "x"
    }
    await NodeRemoval(api_pods.api, settings).run()


async def test_what_can_not_be_done_is_named_and_tried_again(
    api_pods: ApiPods, host: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "LOOK_S", 0.05)
    folder = host / "usr" / "local" / "vgpu" / "containers"
    write(folder)
    work = NodeRemoval(api_pods.api, settings)
    running = asyncio.create_task(work.run())
    await eventually(lambda: "can't be read" in work.waits_for)

    folder.unlink()
    async with asyncio.timeout(PATIENCE_S):
        await running

    assert not (host / "usr" / "local" / "vgpu").exists()
