"""A real kube-scheduler on loopback, with our scheduler as its extender."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port
from hamilocal.supervisor.probes import http_ready

_GROUP = "kubescheduler.config.k8s.io"
CURRENT = (1, 25)
"""The first version that reads the configuration's v1, as all later ones do."""


def config_version(version: tuple[int, int]) -> str:
    """The newest version of the configuration that a kube-scheduler of this version reads."""
    if version >= CURRENT:
        return "v1"
    if version >= (1, 23):
        return "v1beta3"
    return "v1beta2" if version == (1, 22) else "v1beta1"


def scheduler_config(
    *,
    version: tuple[int, int],
    kubeconfig: Path,
    extenders: Sequence[Mapping[str, Any]],
    profiles: Sequence[str] = ("default-scheduler",),
    back_off_s: tuple[int, int] = (1, 1),
    node_percent: int = 0,
) -> dict[str, Any]:
    """A KubeSchedulerConfiguration; `extenders` are entries as that type has them.

    `node_percent`: of the nodes, to be looked at for a pod; 0: kube-scheduler's own choice.

    Back-off is 1 s: the scheduler requeues a pod when capacity becomes free (architecture 3.7),
    and a longer back-off would only delay that.
    """
    config: dict[str, Any] = {
        "apiVersion": f"{_GROUP}/{config_version(version)}",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 2000},
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": back_off_s[0],
        "podMaxBackoffSeconds": back_off_s[1],
        "percentageOfNodesToScore": node_percent,
        "profiles": [{"schedulerName": name} for name in profiles],
        "extenders": [dict(extender) for extender in extenders],
    }
    if version < (1, 22):
        # The open port of old versions is 10251 on every interface by default.
        open_port = f"{LOOPBACK}:{free_port()}"
        config |= {"healthzBindAddress": open_port, "metricsBindAddress": open_port}
    return config


def prepare(
    folder: Path, *, binary: Path, kubeconfig: Path, config: Mapping[str, Any]
) -> ServerPlan:
    """Write the configuration into `folder`; returns how to run the scheduler."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "kube-scheduler.yaml"
    file.write_text(yaml.safe_dump(dict(config), sort_keys=False))
    port = free_port()
    options = {
        "config": str(file),
        "authentication-kubeconfig": str(kubeconfig),
        "authorization-kubeconfig": str(kubeconfig),
        "bind-address": LOOPBACK,
        "secure-port": str(port),
        "cert-dir": str(folder / "certificates"),
    }
    url = f"https://{LOOPBACK}:{port}"
    return ServerPlan(
        name="kube-scheduler",
        argv=(str(binary), *(f"--{name}={value}" for name, value in options.items())),
        cwd=folder,
        log_path=folder / "kube-scheduler.log",
        url=url,
        port=port,
        # It signs its own certificate; whether it answers is all that is asked.
        probe=partial(http_ready, f"{url}/healthz", verify=False),
        start_timeout_s=60.0,
    )
