"""Pods that ask for cards of other vendors go the same way, from admission to the binding.

Their nodes run no agent of ours. The cases write what those vendors' device plugins write, and
answer for them.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
from hamicommon.k8s.types import Json

from tests.e2e.system import System, a_pod, wait

NODE = "other-vendor"
DCU_REGISTER = "DCU-0,4,16384,100,DCU-Z100L,0,true:"
AMD_CARD = {"id": "GPU-amd-0", "count": 4, "devmem": 65536, "devcore": 100, "type": "MI300X"}


@contextmanager
def other_node(
    system: System, annotations: Mapping[str, str], capacity: Mapping[str, str]
) -> Iterator[None]:
    """A node without our agent, ready and without taints."""
    listed = {"cpu": "8", "memory": "16Gi", "pods": "20", **capacity}
    made = system.api.post(
        "/api/v1/nodes",
        json={
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "annotations": dict(annotations)},
            "status": {
                "capacity": listed,
                "allocatable": listed,
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        },
    )
    assert made.status_code == 201, made.text
    patch(system, f"/api/v1/nodes/{NODE}", {"spec": {"taints": None}})
    try:
        yield
    finally:
        for pod in system.pods():
            if pod["spec"].get("nodeName") == NODE:
                name = pod["metadata"]["name"]
                path = f"/api/v1/namespaces/default/pods/{name}"
                system.api.request("DELETE", path, json={"gracePeriodSeconds": 0})
        system.api.delete(f"/api/v1/nodes/{NODE}")


def patch(system: System, path: str, body: Json) -> None:
    answer = system.api.patch(
        path, json=body, headers={"Content-Type": "application/merge-patch+json"}
    )
    assert answer.status_code == 200, answer.text


def wait_until_bound(system: System, name: str) -> Json:
    """The pod, once it is bound to the node."""

    def there() -> Json | None:
        pod = system.pod(name)
        return pod if pod and pod["spec"].get("nodeName") == NODE else None

    return wait(there, f"{name} to be bound", why=lambda: str(system.events(name)))


@pytest.mark.parametrize(
    ("annotations", "capacity", "limits", "key", "written"),
    [
        pytest.param(
            {"hami.io/node-dcu-register": DCU_REGISTER},
            {"hygon.com/dcunum": "8"},
            {"hygon.com/dcunum": 1, "hygon.com/dcumem": 4096, "hygon.com/dcucores": 15},
            "hami.io/dcu-devices-allocated",
            "DCU-0,DCU,4096,15:;",
            id="Hygon DCU",
        ),
        pytest.param(
            {"hami.io/node-amd-register": json.dumps([AMD_CARD | {"health": True}])},
            {"amd.com/gpu": "4"},
            {"amd.com/gpu": 1, "amd.com/gpumem": 8192, "amd.com/gpucores": 25},
            "hami.io/amd-devices-allocated",
            "GPU-amd-0,MI300X,8192,25:;",
            id="AMD",
        ),
    ],
)
def test_a_slice_of_another_vendors_card_is_granted_mirrored_and_given_back(
    system: System,
    annotations: Mapping[str, str],
    capacity: Mapping[str, str],
    limits: Mapping[str, object],
    key: str,
    written: str,
) -> None:
    with other_node(system, annotations, capacity):
        answer = system.create(a_pod("slice", limits))
        assert answer.status_code == 201, answer.text
        assert answer.json()["spec"]["schedulerName"] == "hami-scheduler"

        pod = wait_until_bound(system, "slice")
        assert pod["metadata"]["annotations"][key] == written
        path = "/api/v1/namespaces/default/pods/slice"
        patch(system, path, {"metadata": {"annotations": {"hami.io/bind-phase": "success"}}})
        state = f"SELECT state FROM allocations WHERE pod_uid = '{pod['metadata']['uid']}'"
        wait(lambda: system.sql(state) == "allocated", "the slice to be allocated")
        system.check_invariants()

    wait(lambda: system.sql(state).startswith("released"), "the slice to be given back")


def test_too_much_of_another_vendors_card_waits_with_the_reason(system: System) -> None:
    with other_node(system, {"hami.io/node-dcu-register": DCU_REGISTER}, {"hygon.com/dcunum": "8"}):
        system.create(a_pod("too-much", {"hygon.com/dcunum": 1, "hygon.com/dcumem": 999999}))

        assert "CardInsufficientMemory" in system.wait_for_reason("too-much")
        system.delete("too-much")
