"""Slices by ResourceClaims, beside slices by `nvidia.com/gpu`, on a real kubelet and scheduler.

Claims are named ones if no kube-controller-manager runs: it handles templates and the release of
claims.
"""

import json

from hamilocal.system.services import SCHEDULER_NAME

from tests import measured
from tests.e2e.system import slice_of, wait
from tests.e2e_node.dra.claims import (
    CARD_MIB,
    CLAIMS,
    CLASS,
    MERGE,
    TEMPLATES,
    claim,
    claiming_pod,
    control,
    descriptions,
    devices,
    reasons,
    slices,
    start,
)
from tests.e2e_node.node_system import CARDS, NodeSystem


def test_a_claim_is_a_slice_of_the_same_ledger(claiming: NodeSystem) -> None:
    system = claiming
    uid = claim(system, "small", gpu={"memory": "4096Mi", "cores": "30"})
    assert system.create(claiming_pod(system, "small")).status_code == 201
    pod = system.wait_for_phase("small", "Running")
    generations = {spec["pool"]["generation"] for spec in slices(system)}

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
    # Claims change nothing of it, and each write would have kube-scheduler look again.
    assert {spec["pool"]["generation"] for spec in slices(system)} == generations
    system.delete("small")
    wait(lambda: system.live_allocations() == 0, "the slice to be free")
    measured.note("a claim of 4096Mi and 30 cores: the container sees and can take just that")


def test_a_claim_is_granted_at_the_binding_where_a_limit_of_no_card_names_us(
    claiming: NodeSystem,
) -> None:
    system = claiming
    claim(system, "bound", gpu={"memory": "4096Mi", "cores": "30"})
    pod = claiming_pod(system, "bound")
    pod["spec"]["schedulerName"] = SCHEDULER_NAME
    pod["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "0"}
    assert system.create(pod).status_code == 201
    pod = system.wait_for_phase("bound", "Running")

    assert system.wrong_slice(pod, 4096, core_percent=30) == []
    uid = pod["metadata"]["uid"]
    steps = f"SELECT state FROM allocation_events WHERE pod_uid = '{uid}' ORDER BY sequence LIMIT 1"
    # A slice that is granted at the preparation is never on its way.
    assert system.sql(steps) == "binding"
    wait(
        lambda: system.sql(f"SELECT state FROM allocations WHERE pod_uid = '{uid}'") == "allocated",
        "the agent's report",
    )
    system.delete("bound")
    wait(lambda: system.live_allocations() == 0, "the slice to be free")
    system.check_invariants()


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
        headers=MERGE,
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


REPLICAS, ROLLS = 5, 3


def test_a_deployment_rolled_again_and_again_leaks_no_claim(
    claiming: NodeSystem, controllers: None
) -> None:
    del controllers
    system = claiming
    request = {
        "name": "gpu",
        "exactly": {
            "deviceClassName": CLASS,
            "capacity": {"requests": {"memory": "1024Mi", "cores": "5"}},
        },
    }
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "a-slice"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    made = system.api.post(TEMPLATES, json=template)
    assert made.status_code == 201, made.text
    pod = claiming_pod(system, "rolled")
    pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimTemplateName": "a-slice"}]
    labels = {"app": "rolled"}
    deployment = {
        "metadata": {"name": "rolled"},
        "spec": {
            "replicas": REPLICAS,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod["spec"]},
        },
    }
    path = "/apis/apps/v1/namespaces/default/deployments"
    made = system.api.post(path, json=deployment)
    assert made.status_code == 201, made.text

    def rolled_out() -> bool:
        now = system.get(f"{path}/rolled")
        status = now["status"]
        return status.get("observedGeneration") == now["metadata"]["generation"] and (
            [status.get(key) for key in ("replicas", "updatedReplicas", "readyReplicas")]
            == [REPLICAS] * 3
        )

    for roll in range(ROLLS + 1):
        wait(rolled_out, f"roll {roll} to be out", timeout_s=240)
        staying = [p for p in system.pods() if "deletionTimestamp" not in p["metadata"]]
        assert system.wrong_slice(staying[0], 1024, core_percent=5) == []
        if roll < ROLLS:
            change = {"spec": {"template": {"metadata": {"annotations": {"roll": str(roll)}}}}}
            answer = system.api.patch(
                f"{path}/rolled",
                json=change,
                headers=MERGE,
            )
            assert answer.status_code == 200, answer.text
    system.check_invariants()

    system.api.delete(f"{path}/rolled?propagationPolicy=Background")
    system.api.delete(f"{TEMPLATES}/a-slice")
    wait(lambda: system.pods() == [], "the pods to go", timeout_s=240)
    wait(lambda: system.get(CLAIMS)["items"] == [], "the claims to go", timeout_s=120)
    wait(lambda: system.live_allocations() == 0, "the slices to be free")
    wait(lambda: not descriptions(system), "the device descriptions to go")
    measured.note(f"a Deployment of {REPLICAS} by claims, rolled {ROLLS} times: nothing leaked")


def test_a_sick_card_shows_in_the_pods_status_and_takes_no_claims(claiming: NodeSystem) -> None:
    system = claiming
    claim(system, "holds", gpu={"memory": "1024Mi"})
    assert system.create(claiming_pod(system, "holds")).status_code == 201
    pod = system.wait_for_phase("holds", "Running")
    [held] = system.get(f"{CLAIMS}/holds")["status"]["allocation"]["devices"]["results"]

    def health() -> str:
        now = system.pod("holds") or pod
        [status] = now["status"]["containerStatuses"]
        shown = status.get("allocatedResourcesStatus") or [{"resources": [{}]}]
        return str(shown[0]["resources"][0].get("health"))

    wait(lambda: health() == "Healthy", "the card's health in the pod's status", why=health)
    index = next(
        str(device["attributes"]["index"]["int"])
        for device in devices(system)
        if device["name"] == held["device"]
    )
    control(system, "lose", index)
    try:
        wait(lambda: health() == "Unhealthy", "the sick card in the pod's status", why=health)
        wait(
            lambda: any("taints" in d for d in devices(system) if d["name"] == held["device"]),
            "the device's taint",
        )
    finally:
        control(system, "restore", index)
    wait(lambda: health() == "Healthy", "the card to be well again", why=health)
