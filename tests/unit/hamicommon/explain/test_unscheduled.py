"""Pods that never came show the reason themselves."""

from __future__ import annotations

from typing import Any

import pytest
from hamicommon import device_config
from hamicommon.explain.unscheduled import why_undecided
from hamicommon.vendors.registry import Vendors

VENDORS = Vendors.from_config(device_config.load(None))
CARD = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}


def why(**changes: Any) -> str:
    pod = {
        "metadata": changes.pop("metadata", {}),
        "status": changes.pop("status", {}),
        "spec": {"schedulerName": "hami-scheduler", "containers": [CARD], **changes},
    }
    return why_undecided(pod, VENDORS, "hami-scheduler")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        pytest.param({"containers": [{"name": "c"}]}, "asks for no card", id="no resource"),
        pytest.param(
            {
                "containers": [{"name": "c"}],
                "resourceClaims": [{"name": "card"}],
                "status": {
                    "conditions": [
                        {
                            "type": "PodScheduled",
                            "status": "False",
                            "message": "1 cannot allocate all claims",
                        }
                    ]
                },
            },
            "asks by ResourceClaims (card), which kube-scheduler allocates first, and the ledger "
            "grants on the node; its message: 1 cannot allocate all claims; what each card",
            id="by a claim that is not allocated",
        ),
        pytest.param(
            {
                "containers": [{"name": "c"}],
                "resourceClaims": [{"name": "card"}],
                "nodeName": "n",
            },
            "node n has not prepared them",
            id="by a claim that is not prepared",
        ),
        pytest.param(
            {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "x"}}}]},
            "can't be read",
            id="malformed",
        ),
        pytest.param({"schedulerName": "other"}, "waits for scheduler other", id="other scheduler"),
        pytest.param({"schedulerName": ""}, "default-scheduler", id="no scheduler"),
        pytest.param(
            {"schedulerName": "", "metadata": {"labels": {"hami.io/webhook": "ignore"}}},
            "its label hami.io/webhook keeps the webhook away",
            id="webhook kept away",
        ),
        pytest.param(
            {"schedulerName": "", "nodeName": "n"}, "was put on node n", id="bound past us"
        ),
        pytest.param({"schedulingGates": [{"name": "a"}]}, "scheduling gates (a)", id="gated"),
        pytest.param({"status": {"phase": "Succeeded"}}, "has ended", id="over"),
        pytest.param(
            {
                "status": {
                    "conditions": [
                        {"type": "PodScheduled", "status": "False", "message": "0/1 taints"}
                    ]
                }
            },
            "its message: 0/1 taints",
            id="refused before us",
        ),
        pytest.param({}, "has not asked about the pod", id="nobody asked"),
    ],
)
def test_the_reason_is_in_the_pod(changes: dict[str, Any], reason: str) -> None:
    assert reason in why(**changes)
