"""Files that a local Kubernetes needs: the kubeconfig and kube-scheduler's configuration. Pure."""

from __future__ import annotations

import base64
from typing import Any

# The resources that our extender decides; kube-scheduler must not count them itself.
MANAGED_RESOURCES = (
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/priority",
)
EXTENDER_TIMEOUT_S = 30


def kubeconfig(*, server: str, authority: bytes, token: str) -> dict[str, Any]:
    """One cluster, one user, one context named `hami`."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "hami",
        "clusters": [
            {
                "name": "hami",
                "cluster": {
                    "server": server,
                    "certificate-authority-data": base64.b64encode(authority).decode(),
                },
            }
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [
            {"name": "hami", "context": {"cluster": "hami", "user": "admin"}},
        ],
    }


def scheduler_configuration(
    *,
    kubeconfig_path: str,
    extender_url: str,
    scheduler_name: str,
    api_version: str = "kubescheduler.config.k8s.io/v1",
    leader_elect: bool = False,
    other_profiles: tuple[str, ...] = (),
) -> dict[str, Any]:
    """KubeSchedulerConfiguration with our extender; 1.20 wants `.../v1beta1`.

    Back-off is 1 s: the scheduler nudges a pod when capacity becomes free (architecture 3.7), and a
    longer back-off would only delay that. `other_profiles` are names of schedulers that this one
    stands in for.
    """
    return {
        "apiVersion": api_version,
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig_path, "qps": 1000, "burst": 2000},
        "leaderElection": {"leaderElect": leader_elect},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
        "profiles": [{"schedulerName": name} for name in (*other_profiles, scheduler_name)],
        "extenders": [
            {
                "urlPrefix": extender_url,
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "bindVerb": "bind",
                "weight": 1,
                "enableHTTPS": extender_url.startswith("https"),
                "nodeCacheCapable": True,
                "httpTimeout": f"{EXTENDER_TIMEOUT_S}s",
                "ignorable": False,
                "managedResources": [
                    {"name": name, "ignoredByScheduler": True} for name in MANAGED_RESOURCES
                ],
            }
        ],
    }
