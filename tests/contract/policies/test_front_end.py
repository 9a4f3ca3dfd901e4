"""Which pods of a labelled namespace ask by claims, by the component `dra`."""

from pathlib import Path

import pytest
import yaml
from hamicommon.k8s.pod_annotations import FRONT_END
from hamicommon.k8s.types import Json

from tests.contract.policies.guarded import PLURALS, Guarded
from tests.control_plane import Assets
from tests.waiting import wait

POLICY = Path(__file__).parents[3] / "k8s" / "components" / "dra" / "front-end.yaml"


def annotations(guarded: Guarded, namespace: str, **written: str) -> dict[str, str]:
    """Return the annotations of a pod that the API server would create with these."""
    container = {"name": "c", "image": "x"}
    metadata: Json = {"name": "p"}
    if written:
        metadata["annotations"] = {key.replace("__", "/"): value for key, value in written.items()}
    body = {"metadata": metadata, "spec": {"containers": [container]}}
    shown = guarded.admin.post(f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All")
    assert shown.status_code == 201, shown.text
    return dict(shown.json()["metadata"].get("annotations") or {})


@pytest.fixture(scope="module")
def labelled(guarded: Guarded, kubernetes_assets: Assets) -> Guarded:
    """With the namespaces `claims`, which has the label, and `plain`."""
    if kubernetes_assets.version < (1, 36):
        pytest.skip("policies that change objects are in Kubernetes 1.36 and newer")
    for body in yaml.safe_load_all(POLICY.read_text()):
        guarded.make(PLURALS[body["kind"]], body)
    for name, labels in (("claims", {FRONT_END.name: "dra"}), ("plain", {})):
        guarded.make(PLURALS["Namespace"], {"metadata": {"name": name, "labels": labels}})
    wait(lambda: FRONT_END.name in annotations(guarded, "claims"), "the policy holds")
    return guarded


def test_pods_of_a_labelled_namespace_ask_by_claims_and_keep_their_annotations(
    labelled: Guarded,
) -> None:
    assert annotations(labelled, "claims") == {FRONT_END.name: "dra"}
    assert annotations(labelled, "claims", mine="1") == {FRONT_END.name: "dra", "mine": "1"}


def test_a_pod_goes_before_its_namespace(labelled: Guarded) -> None:
    written = {FRONT_END.name.replace("/", "__"): "limits"}
    assert annotations(labelled, "claims", **written) == {FRONT_END.name: "limits"}


def test_other_namespaces_are_left_alone(labelled: Guarded) -> None:
    assert annotations(labelled, "plain") == {}
    assert annotations(labelled, "plain", mine="1") == {"mine": "1"}
