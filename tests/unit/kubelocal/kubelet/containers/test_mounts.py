"""Mounts of a container, in both ways of making them."""

from pathlib import Path

from kubelocal.kubelet.containers import mounts
from kubelocal.kubelet.devices.types import AllocateAnswer, DeviceNode, Mount

from tests.unit.kubelocal.kubelet.pod_builders import container, pod

HOOK = Mount(container_path="/usr/local/vgpu", host_path="/host/pod_main")
LIBRARY = Mount(
    container_path="/usr/local/vgpu/libvgpu.so", host_path="/host/libvgpu.so", read_only=True
)
PRELOAD = Mount(
    container_path="/etc/ld.so.preload", host_path="/host/ld.so.preload", read_only=True
)


def test_parents_are_mounted_before_what_lies_below_them() -> None:
    answer = AllocateAnswer(mounts=(LIBRARY, PRELOAD, HOOK))

    ordered = mounts.ordered(answer, [])

    assert ordered.index(HOOK) < ordered.index(LIBRARY)


def test_device_files_that_stand_elsewhere_are_mounts() -> None:
    nodes = (
        DeviceNode(container_path="/dev/nvidia0", host_path="/dev/nvidia0", permissions="rw"),
        DeviceNode(container_path="/dev/nvidia1", host_path="/dev/real1", permissions="rw"),
    )

    ordered = mounts.ordered(AllocateAnswer(nodes=nodes), [])

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

    plan = mounts.volumes(pod(spec, volumes=volumes), spec, volumes_dir=Path("/v"))

    assert plan.mounts == (
        Mount(container_path="/scratch", host_path="/v/scratch/x"),
        Mount(container_path="/h", host_path="/srv", read_only=True),
    )
    assert plan.directories == (Path("/v/scratch/x"),)
    assert plan.skipped == ("token",)


def test_path_mapping_preloads_by_host_paths_what_the_preload_file_names() -> None:
    env = mounts.pathmap_env(
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
    env = mounts.pathmap_env({}, [HOOK], pathmap_library=Path("/p.so"), read_text=lambda path: "")

    assert env["LD_PRELOAD"] == "/p.so"
