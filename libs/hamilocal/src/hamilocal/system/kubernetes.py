"""Configure kube-scheduler with our scheduler as extender."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hamicommon.admission.marker import SLICE
from hamicommon.placement.host_scores import EXTENDER_WEIGHT

EXTENDER_TIMEOUT_S = 30
SCORING_TIMEOUT_MS = 200
"""Time-out of scoring calls: kube-scheduler places pods one by one, so an outage delays each."""


def scheduler_configuration(
    *,
    kubeconfig_path: str,
    extender_url: str,
    scheduler_name: str,
    resources: Iterable[str],
    score_pods_without_cards: bool = False,
) -> dict[str, Any]:
    """Return a KubeSchedulerConfiguration with our extender, for kube-scheduler 1.25 and newer.

    Args:
        kubeconfig_path: kubeconfig of kube-scheduler.
        extender_url: address of hami-scheduler.
        scheduler_name: of pods that ask for a card.
        resources: every extended resource that the extender decides (`Vendors.resource_names`).
        score_pods_without_cards: it also scores nodes for those by the least harm.
    """
    https = extender_url.startswith("https")
    shared = {"urlPrefix": extender_url, "enableHTTPS": https, "nodeCacheCapable": True}
    ours = shared | {
        "filterVerb": "filter",
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "httpTimeout": f"{EXTENDER_TIMEOUT_S}s",
        "ignorable": False,
        "managedResources": managed_resources(resources),
    }
    # It manages no resource, so kube-scheduler calls it for every pod.
    scoring = shared | {
        "prioritizeVerb": "prioritize-without-cards",
        "weight": EXTENDER_WEIGHT,
        "httpTimeout": f"{SCORING_TIMEOUT_MS}ms",
        "ignorable": True,
    }
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig_path, "qps": 1000, "burst": 2000},
        "leaderElection": {"leaderElect": False},
        # Our scheduler requeues a pod when capacity becomes free; a longer back-off only delays it.
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 1,
        # Pods that ask for no card keep the default name and must be placed too.
        "profiles": [{"schedulerName": name} for name in ("default-scheduler", scheduler_name)],
        "extenders": [ours, scoring] if score_pods_without_cards else [ours],
    }


def managed_resources(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return an extender's `managedResources`, which kube-scheduler itself does not count."""
    return [{"name": name, "ignoredByScheduler": True} for name in (*names, SLICE)]
