"""Environment and command line of a container."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hamicommon.errors import InvalidRequest
from kubelocal.kubelet.containers import environment as container_env
from kubelocal.kubelet.containers.environment import Driver, OwnDriver, StandInDriver
from kubelocal.kubelet.devices.state import AllocateAnswer, DeviceNode, Mount

from tests.unit.kubelocal.kubelet.pod_builders import container, pod

DRIVER = StandInDriver(library_dir=Path("/driver"), config=Path("/fakegpu.json"))
ANSWER = AllocateAnswer(envs={"NVIDIA_VISIBLE_DEVICES": "GPU-1", "CUDA_DEVICE_SM_LIMIT": "30"})


OWN = OwnDriver(tools_dir=Path("/tools"), library_dir=Path("/usr/local/nvidia/lib64"))


def environment(
    answer: AllocateAnswer = ANSWER, *, driver: Driver = DRIVER, **fields: Any
) -> dict[str, str]:
    spec = container(**fields)
    return container_env.environment(pod(spec), spec, answer, node="node-1", driver=driver)


def test_a_container_gets_the_plugins_variables_and_sees_its_card() -> None:
    env = environment()

    assert env["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert env["FAKEGPU_VISIBLE_DEVICES"] == "GPU-1"
    assert env["FAKEGPU_CONFIG"] == "/fakegpu.json"
    assert env["LD_LIBRARY_PATH"] == "/driver"
    assert env["PATH"].endswith(":/driver")
    assert env["HOSTNAME"] == "pod-uid-1"


def test_on_this_machines_own_driver_cuda_is_shown_the_card_that_was_granted() -> None:
    env = environment(driver=OWN, env=[{"name": "LD_LIBRARY_PATH", "value": "/mine"}])

    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert env["LD_LIBRARY_PATH"] == "/usr/local/nvidia/lib64:/mine"
    assert env["PATH"].endswith(":/tools")
    assert not any(name.startswith("FAKEGPU") for name in env)


@pytest.mark.parametrize(("asked", "shown"), [("void", ""), ("none", ""), ("all", None)])
def test_on_this_machines_own_driver_a_container_without_a_grant_is_shown_none(
    asked: str, shown: str | None
) -> None:
    answer = AllocateAnswer(envs={"NVIDIA_VISIBLE_DEVICES": asked})

    assert environment(answer, driver=OWN).get("CUDA_VISIBLE_DEVICES") == shown


def test_a_driver_that_the_loader_finds_by_itself_needs_no_path() -> None:
    driver = OwnDriver(tools_dir=Path("/tools"), library_dir=None)

    assert "LD_LIBRARY_PATH" not in environment(driver=driver)


def test_the_containers_own_variable_wins_over_the_plugins() -> None:
    env = environment(env=[{"name": "CUDA_DEVICE_SM_LIMIT", "value": "90"}])

    assert env["CUDA_DEVICE_SM_LIMIT"] == "90"


def test_no_container_can_change_what_the_runtime_mounts() -> None:
    env = environment(
        env=[
            {"name": "FAKEGPU_CONFIG", "value": "/mine.json"},
            {"name": "LD_LIBRARY_PATH", "value": "/mine"},
        ]
    )

    assert env["FAKEGPU_CONFIG"] == "/fakegpu.json"
    assert env["LD_LIBRARY_PATH"] == "/driver:/mine"


def test_values_refer_to_variables_before_them() -> None:
    env = environment(
        env=[
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)-$(NONE)-$$(A)"},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
        ]
    )

    assert env["B"] == "1-$(NONE)-$(A)"
    assert (env["NODE"], env["LABEL"]) == ("node-1", "b")


def test_a_source_that_is_not_simulated_is_named() -> None:
    source = {"configMapKeyRef": {"name": "config", "key": "k"}}

    with pytest.raises(InvalidRequest, match="env A: only values and fieldRef are simulated"):
        environment(env=[{"name": "A", "valueFrom": source}])


def test_an_optional_source_is_left_out() -> None:
    source = {"configMapKeyRef": {"name": "config", "key": "k", "optional": True}}

    assert "A" not in environment(env=[{"name": "A", "valueFrom": source}])


@pytest.mark.parametrize(
    ("asked", "visible"),
    [
        (None, "none"),
        ("", "none"),
        ("void", "none"),
        ("none", "none"),
        ("all", "all"),
        ("GPU-1,GPU-2", "GPU-1,GPU-2"),
        ("0,1", "0,1"),
    ],
)
def test_visible_devices_are_read_as_a_container_runtime_does(
    asked: str | None, visible: str
) -> None:
    env = {} if asked is None else {"NVIDIA_VISIBLE_DEVICES": asked}

    assert container_env.visible_devices(env, []) == visible


def test_devices_may_be_given_as_mounts() -> None:
    mounts = [
        Mount(container_path=f"/var/run/nvidia-container-devices/{gpu}", host_path="/dev/null")
        for gpu in ("GPU-1", "GPU-2")
    ] + [Mount(container_path="/etc/hami", host_path="/x")]
    env = {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}

    assert container_env.visible_devices(env, mounts) == "GPU-1,GPU-2"


def test_command_and_arguments_are_expanded() -> None:
    spec = container(command=["echo", "$(A)"], args=["$(A)$$"])

    assert container_env.command_line(spec, {"A": "1"}) == ["echo", "1", "1$"]


def test_a_container_without_a_command_sleeps() -> None:
    assert container_env.command_line(container(args=["x"]), {}) == container_env.PAUSE


HOOK = Mount(container_path="/usr/local/vgpu", host_path="/host/pod_main")
LIBRARY = Mount(
    container_path="/usr/local/vgpu/libvgpu.so", host_path="/host/libvgpu.so", read_only=True
)
PRELOAD = Mount(
    container_path="/etc/ld.so.preload", host_path="/host/ld.so.preload", read_only=True
)


def test_parents_are_mounted_before_what_lies_below_them() -> None:
    answer = AllocateAnswer(mounts=(LIBRARY, PRELOAD, HOOK))

    ordered = container_env.order_mounts(answer, [])

    assert ordered.index(HOOK) < ordered.index(LIBRARY)


def test_device_files_that_stand_elsewhere_are_mounts() -> None:
    nodes = (
        DeviceNode(container_path="/dev/nvidia0", host_path="/dev/nvidia0", permissions="rw"),
        DeviceNode(container_path="/dev/nvidia1", host_path="/dev/real1", permissions="rw"),
    )

    ordered = container_env.order_mounts(AllocateAnswer(nodes=nodes), [])

    assert ordered == [Mount(container_path="/dev/nvidia1", host_path="/dev/real1")]


def test_empty_dirs_and_host_paths_are_mounted_and_other_volumes_left_out() -> None:
    spec = container(
        volumeMounts=[
            {"name": "scratch", "mountPath": "/scratch", "subPath": "x"},
            {"name": "host", "mountPath": "/h", "readOnly": True},
            {"name": "token", "mountPath": "/var/run/secrets/token"},
        ]
    )
    volumes = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": "/srv", "type": "Directory"}},
        {"name": "token", "projected": {}},
    ]

    plan = container_env.volumes(pod(spec, volumes=volumes), spec, volumes_dir=Path("/v"))

    assert plan.mounts == (
        Mount(container_path="/scratch", host_path="/v/scratch/x"),
        Mount(container_path="/h", host_path="/srv", read_only=True),
    )
    assert plan.directories == (Path("/v/scratch/x"),)
    assert plan.skipped == ("token",)


def test_path_mapping_preloads_by_host_paths_what_the_preload_file_names() -> None:
    env = container_env.pathmap_env(
        {"LD_PRELOAD": "/own.so"},
        [HOOK, LIBRARY, PRELOAD],
        pathmap_library=Path("/driver/libpathmap.so"),
        read_text=lambda path: "/usr/local/vgpu/libvgpu.so\n" if "preload" in str(path) else "",
    )

    assert env["LD_PRELOAD"] == "/driver/libpathmap.so:/host/libvgpu.so:/own.so"
    assert env["HAMI_PATHMAP"].split(";") == [
        "/usr/local/vgpu/libvgpu.so=/host/libvgpu.so",
        "/etc/ld.so.preload=/host/ld.so.preload",
        "/usr/local/vgpu=/host/pod_main",
    ]


def test_without_a_preload_file_nothing_but_the_path_table_is_preloaded() -> None:
    env = container_env.pathmap_env(
        {}, [HOOK], pathmap_library=Path("/p.so"), read_text=lambda path: ""
    )

    assert env["LD_PRELOAD"] == "/p.so"
