"""A pod counts in a ResourceQuota as Kubernetes counts it."""

from __future__ import annotations

from typing import Any

import pytest
from kubelocal.apiserver.admission.quota import pod_cost


def container(cpu: str, *, sidecar: bool = False) -> dict[str, Any]:
    more = {"restartPolicy": "Always"} if sidecar else {}
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    ("init", "cpu"),
    [
        pytest.param([], 3, id="containers add up"),
        pytest.param([container("5"), container("4")], 5, id="the largest init container"),
        pytest.param([container("6", sidecar=True), container("12")], 18, id="after a sidecar"),
        pytest.param([container("12"), container("6", sidecar=True)], 12, id="before a sidecar"),
        pytest.param([container("1", sidecar=True), container("1")], 4, id="sidecars stay"),
    ],
)
def test_a_pod_counts_what_it_holds_at_the_same_time(init: list[Any], cpu: int) -> None:
    pod = {"spec": {"initContainers": init, "containers": [container("1"), container("2")]}}

    assert pod_cost(pod)["requests.cpu"] == cpu
