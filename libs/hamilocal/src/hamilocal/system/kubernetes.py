"""kube-scheduler's configuration with our scheduler as its extender."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hamicommon.placement.host_scores import EXTENDER_WEIGHT

from hamilocal.servers.control_plane.kube_scheduler import CURRENT, scheduler_config

EXTENDER_TIMEOUT_S = 30
SCORING_TIMEOUT_MS = 200
"""kube-scheduler places one pod after the other: while nobody answers, each waits so long."""


def scheduler_configuration(
    *,
    kubeconfig_path: str,
    extender_url: str,
    scheduler_name: str,
    resources: Iterable[str],
    score_pods_without_cards: bool = False,
) -> dict[str, Any]:
    """KubeSchedulerConfiguration with our extender, as a kube-scheduler of today reads it.

    `resources`: every extended resource that the extender decides (`Vendors.resource_names`).
    `score_pods_without_cards`: it is also asked where those do the least harm.
    """
    extenders = [_extender(extender_url, resources)]
    if score_pods_without_cards:
        extenders.append(_scoring(extender_url))
    return scheduler_config(
        version=CURRENT,
        kubeconfig=Path(kubeconfig_path),
        extenders=extenders,
        # Pods that ask for no card keep the default name; somebody has to place them too.
        profiles=("default-scheduler", scheduler_name),
    )


def _extender(url: str, resources: Iterable[str]) -> dict[str, Any]:
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
        "managedResources": managed_resources(resources),
    }


def _scoring(url: str) -> dict[str, Any]:
    """Asked for every pod, as it manages no resource."""
    return {
        "urlPrefix": url,
        "prioritizeVerb": "prioritize-without-cards",
        "weight": EXTENDER_WEIGHT,
        "enableHTTPS": url.startswith("https"),
        "nodeCacheCapable": True,
        "httpTimeout": f"{SCORING_TIMEOUT_MS}ms",
        "ignorable": True,
    }


def managed_resources(names: Iterable[str]) -> list[dict[str, Any]]:
    """As an extender's configuration has them: kube-scheduler does not count them itself."""
    return [{"name": name, "ignoredByScheduler": True} for name in names]
