"""Old manifests as claims on a real control plane: `hami.io/front-end: dra`."""

import json
from typing import Any

import pytest
import yaml
from hamicommon.k8s.annotations import CLAIM_SHAPE
from hamicommon.k8s.pod_annotations import FRONT_END
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.system import slice_of, wait
from tests.e2e_node.dra.claims import (
    API,
    CARD_MIB,
    CLAIMS,
    COMPONENT,
    MERGE,
    TEMPLATES,
    descriptions,
    devices,
    directories,
)
from tests.e2e_node.node_system import NodeSystem

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
PODS = "/api/v1/namespaces/default/pods"
GONE_S = 240.0
"""A template is kept for a minute after its last pod."""


def old(
    system: NodeSystem, name: str, limits: dict[str, object], **annotations: str
) -> dict[str, Any]:
    """A pod by limits, with the annotation that makes a claim of them."""
    pod = system.pod_like(name, limits)
    pod["spec"]["schedulerName"] = "default-scheduler"
    pod["metadata"]["annotations"] = {FRONT_END.name: "dra", **annotations}
    return pod


def items(system: NodeSystem, path: str) -> list[Json]:
    return list(system.get(path)["items"])


def leaves_nothing(system: NodeSystem) -> None:
    """Wait until nothing of converted pods is left."""
    wait(lambda: items(system, CLAIMS) == [], "the claims to go")
    wait(lambda: system.live_allocations() == 0, "the slices to be free")
    wait(lambda: not descriptions(system), "the device descriptions to go")
    wait(lambda: not directories(system), "the directories to go")
    wait(lambda: items(system, TEMPLATES) == [], "the templates to go", timeout_s=GONE_S)


def origin_of(system: NodeSystem, pod: Json) -> str:
    return system.sql(
        "SELECT origin FROM allocations WHERE ended_at IS NULL"
        f" AND pod_uid = '{pod['metadata']['uid']}'"
    )


def test_a_dry_run_shows_the_claim_and_creates_nothing(claiming: NodeSystem) -> None:
    system = claiming
    for pod in (
        old(system, "dry", slice_of(1024, 10)),
        {
            **old(system, "", slice_of(1024, 10)),
            "metadata": {"generateName": "dry-", "annotations": {FRONT_END.name: "dra"}},
        },
    ):
        shown = system.api.post(f"{PODS}?dryRun=All", json=pod)
        assert shown.status_code == 201, shown.text
        [entry] = shown.json()["spec"]["resourceClaims"]
        assert entry["resourceClaimTemplateName"].startswith("hami-")
    assert items(system, TEMPLATES) == items(system, CLAIMS) == system.pods() == []


def test_old_manifests_run_by_claims_with_the_slices_that_they_name(
    claiming: NodeSystem, controllers: None
) -> None:
    del controllers
    system = claiming
    first = next(d for d in devices(system) if d["attributes"]["index"]["int"] == 1)
    uuid = first["attributes"]["uuid"]["string"]
    asked = {
        "amounts": (old(system, "amounts", slice_of(2048, 20)), 2048, 20),
        "part": (
            old(system, "part", {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 25}),
            CARD_MIB // 4,
            0,
        ),
        "card": (
            old(system, "card", slice_of(1024, 5), **{"nvidia.com/use-gpuuuid": uuid}),
            1024,
            5,
        ),
        "type": (
            old(system, "type", slice_of(512, 5), **{"nvidia.com/use-gputype": "a100"}),
            512,
            5,
        ),
    }
    for pod, _, _ in asked.values():
        made = system.create(pod)
        assert made.status_code == 201, made.text
    for name, (_, memory_mib, cores) in asked.items():
        pod = system.wait_for_phase(name, "Running")
        assert system.wrong_slice(pod, memory_mib, core_percent=cores) == []
        assert origin_of(system, pod) == "claim"
    assert list(system.limits(system.pod("card") or {})) == [uuid]
    system.check_invariants()

    system.delete_all()
    leaves_nothing(system)


def test_init_containers_several_cards_and_two_containers_are_converted(
    claiming: NodeSystem, controllers: None
) -> None:
    del controllers
    system = claiming
    pod = system.pod_like(
        "many",
        containers={
            "pair": {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000},
            "single": slice_of(700, 5),
        },
        init=slice_of(700, 5),
    )
    pod["spec"]["schedulerName"] = "default-scheduler"
    pod["metadata"]["annotations"] = {FRONT_END.name: "dra"}
    pod["spec"]["initContainers"][0]["command"] = ["bash", "-c", "cat /etc/hami/limits"]
    assert system.create(pod).status_code == 201
    pod = system.wait_for_phase("many", "Running")

    assert sorted(system.limits(pod, "pair").values()) == [(1000, 0)] * 2
    assert list(system.limits(pod, "single").values()) == [(700, 5)]
    [name] = [each["name"] for each in pod["spec"]["initContainers"]]
    printed = system.node.pod_log("default", "many", name)
    assert f"memory_bytes {700 << 20} core_percent 5" in printed
    system.delete_all()
    leaves_nothing(system)


def test_what_a_claim_cannot_state_stays_limits_on_the_same_card(
    claiming: NodeSystem, controllers: None
) -> None:
    del controllers
    system = claiming
    policy = {"hami.io/gpu-scheduler-policy": "spread"}
    made = system.create(old(system, "stays", slice_of(1024, 5), **policy))
    assert made.status_code == 201
    assert "keeps its limits" in made.headers["warning"]
    pod = system.wait_for_phase("stays", "Running")
    assert origin_of(system, pod) == "scheduled"
    assert items(system, TEMPLATES) == []


@pytest.mark.parametrize(
    ("replicas", "rolls"), [(5, 2), pytest.param(20, 10, marks=pytest.mark.slow)]
)
def test_a_converted_deployment_rolled_again_and_again_leaks_nothing(
    claiming: NodeSystem, controllers: None, replicas: int, rolls: int
) -> None:
    del controllers
    system, labels = claiming, {"app": "rolled"}
    pod = old(system, "rolled", slice_of(1024, 5))
    template = {
        "metadata": {"labels": labels, "annotations": {FRONT_END.name: "dra"}},
        "spec": pod["spec"],
    }
    deployment = {
        "metadata": {"name": "rolled"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            # As many slots as the node has are in use.
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}},
            "template": template,
        },
    }
    made = system.api.post(DEPLOYMENTS, json=deployment)
    assert made.status_code == 201, made.text

    def rolled_out() -> bool:
        now = system.get(f"{DEPLOYMENTS}/rolled")
        status = now["status"]
        return status.get("observedGeneration") == now["metadata"]["generation"] and (
            [status.get(key) for key in ("replicas", "updatedReplicas", "readyReplicas")]
            == [replicas] * 3
        )

    for roll in range(rolls + 1):
        # A roll with other limits is another shape, and another template.
        memory_mib = 1024 + 16 * (roll % 2)
        wait(rolled_out, f"roll {roll} to be out", timeout_s=900)
        staying = [p for p in system.pods() if "deletionTimestamp" not in p["metadata"]]
        assert len({p["metadata"]["annotations"][CLAIM_SHAPE] for p in staying}) == 1
        assert system.wrong_slice(staying[0], memory_mib, core_percent=5) == []
        if roll < rolls:
            changed = json.loads(json.dumps(template))
            changed["metadata"]["annotations"]["roll"] = str(roll)
            limits = slice_of(1024 + 16 * ((roll + 1) % 2), 5)
            changed["spec"]["containers"][0]["resources"] = {"limits": limits}
            answer = system.api.patch(
                f"{DEPLOYMENTS}/rolled", json={"spec": {"template": changed}}, headers=MERGE
            )
            assert answer.status_code == 200, answer.text
    system.check_invariants()

    system.api.delete(f"{DEPLOYMENTS}/rolled?propagationPolicy=Background")
    wait(lambda: system.pods() == [], "the pods to go", timeout_s=900)
    leaves_nothing(system)
    measured.note(
        f"a converted Deployment of {replicas}, rolled {rolls} times: "
        "0 claims, templates, CDI files and directories left"
    )


def test_a_namespace_converts_its_pods_and_takes_all_with_it(
    claiming: NodeSystem, controllers: None
) -> None:
    del controllers
    system, space = claiming, "/api/v1/namespaces/converted"
    admission = "/apis/admissionregistration.k8s.io/v1"
    bodies = list(yaml.safe_load_all((COMPONENT / "front-end.yaml").read_text()))
    plurals = ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings")
    try:
        for plural, body in zip(plurals, bodies, strict=True):
            made = system.api.post(f"{admission}/{plural}", json=body)
            assert made.status_code == 201, made.text
        labelled = {"name": "converted", "labels": {FRONT_END.name: "dra"}}
        made = system.api.post("/api/v1/namespaces", json={"metadata": labelled})
        assert made.status_code == 201, made.text
        plain = system.pod_like("plain", slice_of(1024, 5))
        plain["spec"]["schedulerName"] = "default-scheduler"
        own = json.loads(json.dumps(plain))
        own["metadata"] = {"name": "own", "annotations": {FRONT_END.name: "limits"}}

        def is_known() -> bool:
            shown = system.api.post(f"{space}/pods?dryRun=All", json=plain)
            return bool(shown.json().get("spec", {}).get("resourceClaims"))

        wait(is_known, "the API server to go by the policy")
        for pod in (plain, own):
            made = system.api.post(f"{space}/pods", json=pod)
            assert made.status_code == 201, made.text

        def running() -> bool:
            pods = items(system, f"{space}/pods")
            return [p["status"].get("phase") for p in pods] == ["Running"] * 2

        wait(running, "both to run", why=lambda: str(items(system, f"{space}/events")))
        assert system.sql(
            "SELECT pod_name, origin FROM allocations WHERE ended_at IS NULL ORDER BY 1"
        ).splitlines() == ["own|scheduled", "plain|claim"]

        system.api.delete(space)
        wait(lambda: system.api.get(space).status_code == 404, "the namespace to go")
        wait(lambda: system.live_allocations() == 0, "the slices to be free")
        wait(lambda: not descriptions(system), "the device descriptions to go")
        wait(lambda: not directories(system), "the directories to go")
        for kind in ("resourceclaims", "resourceclaimtemplates"):
            assert items(system, f"{API}/{kind}") == []
    finally:
        for plural, body in zip(plurals, bodies, strict=True):
            system.api.delete(f"{admission}/{plural}/{body['metadata']['name']}")
