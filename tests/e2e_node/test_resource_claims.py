"""Slices by ResourceClaims, beside slices by `nvidia.com/gpu`, on a real kubelet and scheduler.

Claims are named ones: templates and the release of claims are kube-controller-manager's, which is
not among the parts of these cases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hamicommon.dra.devices import DRIVER
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.system import slice_of, wait
from tests.e2e_node.conftest import RUNTIME_VARIABLE
from tests.e2e_node.node_system import CARDS, NodeSystem

pytestmark = pytest.mark.e2e

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
CLASS = "hami"
CARD_MIB = 81920
SINCE = (1, 36)


@pytest.fixture
def claiming(system: NodeSystem, other_runtime: Path | None) -> Iterator[NodeSystem]:
    """The system with an agent whose cards are DRA devices."""
    if other_runtime is None:
        pytest.skip(f"{RUNTIME_VARIABLE} names no folder of a containerd with CDI")
    version = system.get("/version")
    if (int(version["major"]), int(version["minor"].rstrip("+"))) < SINCE:
        pytest.skip(f"Kubernetes {version['gitVersion']} has no parts of devices, 1.36 has")
    system.agent.stop()
    start(system)
    made = system.api.post(f"{API}/deviceclasses", json=device_class())
    assert made.status_code in (201, 409), made.text
    wait(lambda: len(devices(system)) == CARDS, "the cards in a ResourceSlice")
    yield system
    system.delete_all()
    wait(lambda: not descriptions(system), "the device descriptions to go")
    for claim in system.get(CLAIMS)["items"]:
        forget(system, claim["metadata"]["name"])
    system.agent.stop()
    system.agent.start()
    system.wait_until_offered()


def start(system: NodeSystem) -> None:
    system.agent.start(
        HAMI_NODE_AGENT_DRA="auto",
        HAMI_NODE_AGENT_CRI_SOCKET=str(system.node.socket),
        HAMI_NODE_AGENT_CDI_DIR=str(system.folder.parent / "cdi"),
    )
    system.wait_until_offered()


def descriptions(system: NodeSystem) -> list[Path]:
    """CDI files of slices."""
    return list((system.folder.parent / "cdi").glob("hami.io-slice_*.json"))


def device_class() -> Json:
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": CLASS},
        "spec": {"selectors": [selector]},
    }


def devices(system: NodeSystem) -> list[Json]:
    """Of our slices."""
    slices = system.get(f"{API}/resourceslices")["items"]
    ours = [one["spec"] for one in slices if one["spec"]["driver"] == DRIVER]
    return [device for spec in ours for device in spec.get("devices", [])]


def claim(system: NodeSystem, name: str, **requests: Mapping[str, Any]) -> str:
    """A claim with these requests, each with its capacity."""
    made = system.api.post(
        CLAIMS,
        json={
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": each,
                            "exactly": {
                                "deviceClassName": CLASS,
                                "capacity": {"requests": dict(wanted)},
                            },
                        }
                        for each, wanted in requests.items()
                    ]
                }
            },
        },
    )
    assert made.status_code == 201, made.text
    return str(made.json()["metadata"]["uid"])


def forget(system: NodeSystem, name: str) -> None:
    """As the claim controller does when no pod has it any more."""
    system.api.delete(f"{CLAIMS}/{name}")
    for path, body in (
        (f"{CLAIMS}/{name}/status", {"status": {"reservedFor": None, "allocation": None}}),
        (f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}}),
    ):
        system.api.patch(path, json=body, headers={"content-type": "application/merge-patch+json"})
    wait(lambda: system.api.get(f"{CLAIMS}/{name}").status_code == 404, f"claim {name} to go")


def claiming_pod(system: NodeSystem, name: str, *, of: str | None = None) -> Json:
    """A pod of one probe whose card comes by a claim."""
    pod = system.pod_like(name)
    pod["spec"]["schedulerName"] = "default-scheduler"
    pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": of or name}]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "card"}]}
    return pod


def reasons(system: NodeSystem, name: str) -> str:
    return "\n".join(text for _, text in system.events(name))


def test_a_claim_is_a_slice_of_the_same_ledger(claiming: NodeSystem) -> None:
    system = claiming
    uid = claim(system, "small", gpu={"memory": "4096Mi", "cores": "30"})
    assert system.create(claiming_pod(system, "small")).status_code == 201
    pod = system.wait_for_phase("small", "Running")

    assert system.wrong_slice(pod, 4096, core_percent=30) == []
    row = system.sql(
        "SELECT origin, state FROM allocations WHERE ended_at IS NULL"
        f" AND pod_uid = '{pod['metadata']['uid']}'"
    )
    assert row.partition("|")[0] == "claim"
    wait(
        lambda: system.sql("SELECT state FROM allocations WHERE ended_at IS NULL") == "allocated",
        "the agent's report",
    )
    first = json.loads(
        system.sql(
            "SELECT detail FROM allocation_events"
            f" WHERE pod_uid = '{pod['metadata']['uid']}' AND sequence = 1"
        )
    )
    [based_on] = first["claims"]
    assert based_on["claim_uid"] == uid
    [result] = system.get(f"{CLAIMS}/small")["status"]["allocation"]["devices"]["results"]
    assert based_on["share_id"] == result["shareID"]
    system.delete("small")
    wait(lambda: system.live_allocations() == 0, "the slice to be free")
    measured.note("a claim of 4096Mi and 30 cores: the container sees and can take just that")


def test_claims_and_limits_share_a_card_and_never_exceed_it(claiming: NodeSystem) -> None:
    system = claiming
    half = CARD_MIB // 2
    pods = [system.pod_like(f"limits-{n}", slice_of(half, 10)) for n in range(2)]
    for pod in pods:
        assert system.create(pod).status_code == 201
    for n in range(2):
        system.wait_for_phase(f"limits-{n}", "Running")
    wait(
        lambda: (
            sorted(d["capacity"]["memory"]["value"] for d in devices(system))
            == sorted(["1Mi", f"{CARD_MIB >> 10}Gi"])
        ),
        "the slice to show what the limits left",
        why=lambda: str(devices(system)),
    )
    claim(system, "rest", gpu={"memory": f"{half}Mi"})
    claim(system, "more", gpu={"memory": f"{half + 1}Mi"})
    assert system.create(claiming_pod(system, "rest")).status_code == 201
    pod = system.wait_for_phase("rest", "Running")
    assert system.wrong_slice(pod, half, core_percent=0) == []
    assert system.create(claiming_pod(system, "more")).status_code == 201
    system.wait_for_reason("more")
    assert system.sql("SELECT max(used_memory_mib) FROM devices") == str(CARD_MIB)
    system.check_invariants()


def test_what_was_allocated_by_hand_beyond_a_card_is_refused_by_the_ledger(
    claiming: NodeSystem,
) -> None:
    system = claiming
    claim(system, "most", gpu={"memory": f"{CARD_MIB - 1024}Mi"})
    assert system.create(claiming_pod(system, "most")).status_code == 201
    system.wait_for_phase("most", "Running")
    allocation = system.get(f"{CLAIMS}/most")["status"]["allocation"]
    [result] = allocation["devices"]["results"]
    result["shareID"] = "11111111-2222-3333-4444-555555555555"
    claim(system, "forged", gpu={"memory": f"{CARD_MIB - 1024}Mi"})
    allocation["allocationTimestamp"] = "2026-01-01T00:00:00Z"
    written = system.api.patch(
        f"{CLAIMS}/forged/status",
        json={"status": {"allocation": allocation}},
        headers={"content-type": "application/merge-patch+json"},
    )
    assert written.status_code == 200, written.text
    assert system.create(claiming_pod(system, "forged")).status_code == 201

    wait(
        lambda: "not prepared" in reasons(system, "forged"),
        "the event why the pod waits",
        why=lambda: reasons(system, "forged"),
    )
    assert system.sql("SELECT max(used_memory_mib) FROM devices") == str(CARD_MIB - 1024)
    system.delete("most")
    system.wait_for_phase("forged", "Running", timeout_s=120)
    system.check_invariants()


def test_agent_and_kubelet_may_die_and_come_back(claiming: NodeSystem) -> None:
    system = claiming
    claim(system, "stays", gpu={"memory": "2048Mi", "cores": "10"})
    assert system.create(claiming_pod(system, "stays")).status_code == 201
    pod = system.wait_for_phase("stays", "Running")
    before = system.container_pid(pod)

    system.agent.kill()
    start(system)
    system.node.restart_kubelet()
    wait(lambda: len(devices(system)) == CARDS, "the slices that the kubelet deleted")
    system.wait_until_offered()
    claim(system, "next", gpu={"memory": "1024Mi"})
    assert system.create(claiming_pod(system, "next")).status_code == 201
    system.wait_for_phase("next", "Running")

    assert system.container_pid(pod) == before
    assert system.wrong_slice(pod, 2048, core_percent=10) == []
    assert system.live_allocations() == 2
    assert len(descriptions(system)) == 2
