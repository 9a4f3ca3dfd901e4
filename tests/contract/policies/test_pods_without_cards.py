"""The policy of `docs/packing.md` that has kube-scheduler ask for scores for a namespace's pods."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hamicommon.k8s.types import Json

from tests.contract.policies.guarded import PLURALS, Guarded
from tests.control_plane import Assets
from tests.waiting import wait

PAGE = Path(__file__).parents[3] / "docs" / "packing.md"
SCORED, OTHER = "scored", "not-scored"


@pytest.fixture(scope="module")
def server(guarded: Guarded, kubernetes_assets: Assets) -> Iterator[Guarded]:
    """With the objects of the page, and two namespaces of which one is labelled."""
    if kubernetes_assets.version < (1, 36):
        pytest.skip("policies that change objects are in Kubernetes 1.36 and newer")
    for name in (SCORED, OTHER):
        labels = {"hami.io/pods-without-cards": "scored"} if name == SCORED else {}
        guarded.make("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        account = {"metadata": {"name": "default"}}
        guarded.make(f"/api/v1/namespaces/{name}/serviceaccounts", account)
    blocks = PAGE.read_text().split("```")[1::2]
    [block] = [text for text in blocks if "MutatingAdmissionPolicyBinding" in text]
    objects = list(yaml.safe_load_all(block.removeprefix("yaml\n")))
    for each in objects:
        guarded.make(PLURALS[each["kind"]], each)
    yield guarded
    for each in objects:
        guarded.admin.delete(f"{PLURALS[each['kind']]}/{each['metadata']['name']}")


def scheduler_of(server: Guarded, namespace: str, **spec: str) -> str:
    """Return the scheduler's name that admission gives such a pod."""
    pod: Json = {
        "metadata": {"name": "plain"},
        "spec": {"containers": [{"name": "c", "image": "none"}], **spec},
    }
    answer = server.admin.post(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
    assert answer.status_code == 201, answer.text
    return str(answer.json()["spec"]["schedulerName"])


def test_pods_of_labelled_namespaces_go_to_the_kube_scheduler_that_asks(server: Guarded) -> None:
    wait(lambda: scheduler_of(server, SCORED) == "hami-scheduler", "the policy to hold")

    assert scheduler_of(server, OTHER) == "default-scheduler"
    assert scheduler_of(server, SCORED, schedulerName="my-own") == "my-own"
