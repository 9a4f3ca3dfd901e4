"""A real kubelet over our own containerd; 1.20 and today's versions differ in flags."""

from functools import partial
from pathlib import Path
from typing import Any

import yaml
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port

from tests.processes import http_ready

ROOT = Path("/var/lib/kubelet")
"""Folder in which device plugins look for the kubelet, fixed in kubelets before 1.26."""

DEVICE_PLUGINS = ROOT / "device-plugins"
POD_RESOURCES = ROOT / "pod-resources" / "kubelet.sock"
STATIC_PODS = "static-pods"
"""Folder, beside the configuration, whose manifests the kubelet runs without the API server."""


def kubelet_config(
    *, version: tuple[int, int], runtime: str, port: int, health_port: int
) -> dict[str, Any]:
    """A KubeletConfiguration for a machine without systemd's cgroups, with swap and little disk."""
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": LOOPBACK,
        "port": port,
        "readOnlyPort": 0,
        "healthzBindAddress": LOOPBACK,
        "healthzPort": health_port,
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,  # nothing of the machine outside our folders is touched
        "resolvConf": "",
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        # Today's defaults; before 1.27 it is five requests a second for all pods of the node.
        "kubeAPIQPS": 50,
        "kubeAPIBurst": 100,
        "nodeStatusUpdateFrequency": "2s",
        "syncFrequency": "5s",
    }
    if version >= (1, 27):
        config["containerRuntimeEndpoint"] = runtime
    if version >= (1, 31):
        config["failCgroupV1"] = False
    return config


def prepare(
    folder: Path,
    *,
    binary: Path,
    version: tuple[int, int],
    kubeconfig: Path,
    node: str,
    runtime: str,
) -> ServerPlan:
    """Write the configuration into `folder`; returns how to run the kubelet of the node `node`.

    Its own state is under /var/lib/kubelet, so there is one per machine.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    port, health_port = free_port(), free_port()
    config = folder / "kubelet.yaml"
    document = kubelet_config(version=version, runtime=runtime, port=port, health_port=health_port)
    static_pods = folder / STATIC_PODS
    static_pods.mkdir(exist_ok=True)
    document["staticPodPath"] = str(static_pods)
    config.write_text(yaml.safe_dump(document, sort_keys=False))
    options = {
        "config": str(config),
        "kubeconfig": str(kubeconfig),
        "hostname-override": node,
        "root-dir": str(ROOT),
        "cert-dir": str(folder / "certificates"),
    }
    if version < (1, 27):
        options["container-runtime-endpoint"] = runtime
    if version < (1, 24):
        options["container-runtime"] = "remote"
    url = f"http://{LOOPBACK}:{health_port}"
    return ServerPlan(
        name="kubelet",
        argv=(str(binary), *(f"--{name}={value}" for name, value in options.items())),
        cwd=folder,
        log_path=folder / "kubelet.log",
        url=url,
        port=port,
        probe=partial(http_ready, f"{url}/healthz"),
        start_timeout_s=60.0,
    )
