"""How kube-scheduler is told of our scheduler, its extender."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hamictl.servers.kube_scheduler import CURRENT, scheduler_config

# The resources that our extender decides; kube-scheduler must not count them itself.
MANAGED_RESOURCES = (
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/priority",
)
EXTENDER_TIMEOUT_S = 30


def scheduler_configuration(
    *, kubeconfig_path: str, extender_url: str, scheduler_name: str
) -> dict[str, Any]:
    """KubeSchedulerConfiguration with our extender, as a kube-scheduler of today reads it."""
    return scheduler_config(
        version=CURRENT,
        kubeconfig=Path(kubeconfig_path),
        extenders=[_extender(extender_url)],
        # Pods that ask for no card keep the default name; somebody has to place them too.
        profiles=("default-scheduler", scheduler_name),
    )


def _extender(url: str) -> dict[str, Any]:
    return {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "weight": 1,
        "enableHTTPS": url.startswith("https"),
        "nodeCacheCapable": True,
        "httpTimeout": f"{EXTENDER_TIMEOUT_S}s",
        "ignorable": False,
        "managedResources": [
            {"name": name, "ignoredByScheduler": True} for name in MANAGED_RESOURCES
        ],
    }
