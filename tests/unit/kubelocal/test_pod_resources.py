"""Resources that a pod occupies."""

import pytest
from hamicommon.errors import InvalidRequest
from kubelocal.pod_resources import amount, pod_requests


@pytest.mark.parametrize(
    ("resource", "quantity", "expected"),
    [
        ("cpu", "1", 1000),
        ("cpu", "250m", 250),
        ("cpu", "0.5", 500),
        ("cpu", "100u", 1),
        ("memory", "1Gi", 1 << 30),
        ("memory", "1.5Ki", 1536),
        ("memory", "1k", 1000),
        ("memory", "1e3", 1000),
        ("memory", "2E", 2 * 10**18),
        ("nvidia.com/gpu", "3", 3),
        ("memory", "100m", 1),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(
    resource: str, quantity: str, expected: int
) -> None:
    assert amount(resource, quantity) == expected


@pytest.mark.parametrize("quantity", ["", "x", "1Qi", "Gi", "1 2"])
def test_what_is_no_quantity_is_refused(quantity: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a quantity"):
        amount("memory", quantity)


def _container(cpu: str, **fields: str) -> dict[str, object]:
    return {"resources": {"requests": {"cpu": cpu}}, **fields}


def test_containers_add_up_and_the_largest_init_container_counts_alone() -> None:
    spec = {
        "containers": [_container("1"), _container("2")],
        "initContainers": [_container("5"), _container("4")],
    }
    assert pod_requests(spec) == {"cpu": 5000}


def test_a_missing_request_equals_the_limit() -> None:
    resources = {"limits": {"cpu": "2", "memory": "1Ki"}, "requests": {"cpu": "1"}}

    assert pod_requests({"containers": [{"resources": resources}]}) == {"cpu": 1000, "memory": 1024}


def test_a_sidecar_runs_beside_the_containers_and_later_init_containers() -> None:
    spec = {
        "containers": [_container("1")],
        "initContainers": [_container("1", restartPolicy="Always"), _container("3")],
        "overhead": {"cpu": "100m"},
    }
    assert pod_requests(spec) == {"cpu": 4100}
