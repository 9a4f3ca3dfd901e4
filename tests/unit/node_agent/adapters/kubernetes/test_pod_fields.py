"""A pod's annotation about the library counts as a container's variable does."""

from __future__ import annotations

from typing import Any

import pytest
from hami_node_agent.adapters.kubernetes.pod_fields import literal_env
from hamicommon.k8s.pod_annotations import PRELOAD


@pytest.mark.parametrize(
    ("annotations", "env", "found"),
    [
        ({PRELOAD.name: "false"}, [], {"CUDA_DISABLE_CONTROL": "true"}),
        ({PRELOAD.name: "true"}, [], {"CUDA_DISABLE_CONTROL": "false"}),
        (
            {PRELOAD.name: "false"},
            [{"name": "CUDA_DISABLE_CONTROL", "value": "false"}],
            {"CUDA_DISABLE_CONTROL": "false"},
        ),
        ({PRELOAD.name: "nonsense"}, [{"name": "A", "value": "b"}], {"A": "b"}),
        (None, [], {}),
    ],
)
def test_a_containers_variable_goes_before_its_pods_annotation(
    annotations: dict[str, str] | None, env: list[dict[str, str]], found: dict[str, str]
) -> None:
    pod: dict[str, Any] = {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "main", "env": env}]},
    }

    assert literal_env(pod, "main") == found
