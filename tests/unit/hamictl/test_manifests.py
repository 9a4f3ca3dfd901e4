"""Manifests read down to pods; mistakes named with their file."""

import pytest
from hamicommon.errors import InvalidRequest
from hamictl.manifests import read_manifest

POD = """
kind: Pod
metadata: {name: a}
spec: {containers: [{name: c}]}
"""
DEPLOYMENT = """
kind: Deployment
metadata: {name: web, namespace: team}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c}]}
"""


def read(text: str) -> tuple[list[str], tuple[str, ...]]:
    manifest = read_manifest(text, source="file.yaml", namespace="default")
    names = [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in manifest.pods]
    return names, manifest.left_out


def test_a_pod_without_a_namespace_gets_the_one_asked_for() -> None:
    assert read(POD) == (["default/a"], ())


def test_a_deployment_is_its_template_once_per_replica() -> None:
    assert read(DEPLOYMENT) == (["team/web-0", "team/web-1"], ())


def test_a_cron_jobs_template_lies_deeper() -> None:
    text = """
kind: CronJob
metadata: {name: nightly}
spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: c}]}}}}}
"""
    assert read(text) == (["default/nightly-0"], ())


def test_a_list_is_its_items_and_several_documents_are_read_in_order() -> None:
    text = "kind: List\nitems:\n- {kind: Pod, metadata: {name: x}, spec: {}}\n---" + POD

    assert read(text) == (["default/x", "default/a"], ())


def test_other_kinds_are_named_and_not_dropped() -> None:
    assert read("kind: Service\nmetadata: {name: s}\n") == ([], ("Service/s",))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("a: [", "not YAML: line 1, column 5: ", id="broken yaml"),
        pytest.param("- 1", "Kubernetes object", id="a list"),
        pytest.param("kind: Pod", "metadata.name", id="no name"),
        pytest.param(DEPLOYMENT.replace("2", "-1"), "replicas", id="negative replicas"),
        pytest.param("kind: Job\nmetadata: {name: j}\nspec: {}", "spec.template", id="no template"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_file(text: str, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named) as refused:
        read(text)

    assert "file.yaml" in str(refused.value)
    assert "\n" not in str(refused.value)
