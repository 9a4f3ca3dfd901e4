"""Kueue's objects for the cards of a cluster."""

from typing import Any

import pytest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.kueue.recipe import QueueNames, Recipe, flavor_name, render_policy, render_recipe

from tests.unit.hamicommon.simulation.objects import every_vendor, node

VENDORS = every_vendor()
NAMES = QueueNames(cluster_queue="cards", local_queue="gpu", namespace="team-a")
H100 = {"type": "NVIDIA H100", "devmem": 80_000, "count": 5, "devcore": 150}
POOL = "agentpool"


def host(made: Json, pool: str = "") -> Json:
    made["status"]["allocatable"] |= {"cpu": "3500m", "memory": "4194304Ki"}
    made["metadata"]["labels"] = {POOL: pool} if pool else {}
    return made


def recipe(*nodes: Json, **options: Any) -> Recipe:
    return render_recipe(nodes, VENDORS, NAMES, **options)


def quotas(found: Recipe) -> dict[str, dict[str, str]]:
    [queue] = [each for each in found.objects if each["kind"] == "ClusterQueue"]
    [group] = queue["spec"]["resourceGroups"]
    for flavor in group["flavors"]:
        assert [each["name"] for each in flavor["resources"]] == group["coveredResources"]
    return {
        flavor["name"]: {each["name"]: each["nominalQuota"] for each in flavor["resources"]}
        for flavor in group["flavors"]
    }


def labels(found: Recipe) -> dict[str, dict[str, str]]:
    return {
        each["metadata"]["name"]: each["spec"]["nodeLabels"]
        for each in found.objects
        if each["kind"] == "ResourceFlavor"
    }


def test_a_flavor_has_the_sums_of_its_nodes_and_a_label_that_no_other_has() -> None:
    found = recipe(
        host(node("n1", {}, {}), "small"),
        host(node("n2", {}), "small"),
        host(node("n3", H100), "large"),
        host(node("n4"), "large"),
    )
    assert quotas(found) == {
        "nvidia-a10": {
            "nvidia.com/gpu": "30",
            "nvidia.com/total-gpumem": "24000",
            "nvidia.com/total-gpucores": "300",
            "cpu": "7000m",
            "memory": "8192Mi",
        },
        "nvidia-h100": {
            "nvidia.com/gpu": "5",
            "nvidia.com/total-gpumem": "80000",
            "nvidia.com/total-gpucores": "150",
            "cpu": "3500m",
            "memory": "4096Mi",
        },
    }
    assert labels(found) == {"nvidia-a10": {POOL: "small"}, "nvidia-h100": {POOL: "large"}}
    assert found.configuration["resources"]["transformations"] == [
        {
            "input": f"nvidia.com/{each}",
            "strategy": "Replace",
            "multiplyBy": "nvidia.com/gpu",
            "outputs": {f"nvidia.com/total-{each}": "1"},
        }
        for each in ("gpumem", "gpucores")
    ]
    assert found.objects[-1] == {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": "gpu", "namespace": "team-a"},
        "spec": {"clusterQueue": "cards"},
    }


def test_one_model_alone_needs_no_label() -> None:
    assert labels(recipe(host(node("n1", {})), host(node("n2")))) == {"nvidia-a10": {}}


def test_nodes_with_two_models_are_a_flavor_of_their_own() -> None:
    both = host(node("n1", {}, H100))
    assert labels(recipe(both)) == {"nvidia-a10-and-nvidia-h100": {}}


def test_the_label_that_the_user_names_is_taken() -> None:
    one, other = host(node("n1", {}), "same"), host(node("n2", H100), "same")
    with pytest.raises(InvalidRequest, match=r"none of the labels .*kubectl label node n1 .*A?a10"):
        recipe(one, other)
    one["metadata"]["labels"]["cards"], other["metadata"]["labels"]["cards"] = "a", "h"
    assert labels(recipe(one, other, labels=["cards"]))["nvidia-h100"] == {"cards": "h"}


def test_a_cluster_without_cards_or_amounts_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no node registers a card: is hami installed"):
        recipe(host(node("n1")))
    with pytest.raises(InvalidRequest, match="node n1 states no allocatable cpu and memory"):
        recipe(node("n1", {}))


def test_the_check_is_an_object_that_the_queue_names() -> None:
    found = recipe(host(node("n1", {})), check=True)
    [check] = [each for each in found.objects if each["kind"] == "AdmissionCheck"]
    [queue] = [each for each in found.objects if each["kind"] == "ClusterQueue"]
    assert check["spec"] == {"controllerName": "hami.io/fits-as-slices"}
    [named] = queue["spec"]["admissionChecksStrategy"]["admissionChecks"]
    assert named == {"name": check["metadata"]["name"]}


def test_names_of_flavors_are_names_of_objects() -> None:
    assert flavor_name(["NVIDIA A100-SXM4-80GB", "B_1 (x)"]) == "b-1-x-and-nvidia-a100-sxm4-80gb"
    assert len(flavor_name(["x" * 300])) == 200


def test_the_policy_knows_every_vendor_with_an_amount_of_memory() -> None:
    policy, binding = render_policy(VENDORS)
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    messages = [each["message"] for each in policy["spec"]["validations"]]
    assert messages[0].startswith(
        "a Job of a queue names nvidia.com/gpu and nvidia.com/gpumem in each container with cards"
    )
    assert len(messages) == len([each for each in VENDORS if each.resources.memory])
