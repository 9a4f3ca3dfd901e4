from typing import Any

import pytest
from kubelocal.apiserver.kinds.defaults import default_pod_spec, qos_class, tolerate_lost_nodes


def spec(**resources: Any) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "i", "resources": resources}]}


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1.36", "IfNotPresent"),
        ("host:5000/busybox", "Always"),
        ("host:5000/busybox:2", "IfNotPresent"),
        ("busybox@sha256:0", "IfNotPresent"),
    ],
)
def test_the_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    body = {"containers": [{"name": "c", "image": image}]}
    default_pod_spec(body)
    assert body["containers"][0]["imagePullPolicy"] == policy


def test_requests_come_from_limits_where_they_are_open() -> None:
    body = spec(limits={"cpu": "2", "nvidia.com/gpu": "1"}, requests={"cpu": "1"})
    default_pod_spec(body)
    assert body["containers"][0]["resources"]["requests"] == {"cpu": "1", "nvidia.com/gpu": "1"}


def test_defaulting_twice_is_defaulting_once() -> None:
    body = spec()
    default_pod_spec(body)
    tolerate_lost_nodes(body)
    once = repr(body)
    default_pod_spec(body)
    tolerate_lost_nodes(body)
    assert repr(body) == once


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, "BestEffort"),
        ({"limits": {"nvidia.com/gpu": "1"}}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        (
            {
                "limits": {"cpu": "1", "memory": "1Gi"},
                "requests": {"cpu": "1000m", "memory": "1024Mi"},
            },
            "Guaranteed",
        ),
        ({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}, "Burstable"),
    ],
)
def test_quality_of_service(resources: dict[str, Any], expected: str) -> None:
    assert qos_class(spec(**resources)) == expected
