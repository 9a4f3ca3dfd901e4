import base64
from typing import Any

import orjson
import pytest
from kubelocal.apiserver.admission import review
from kubelocal.apiserver.admission.chain import CelError
from kubelocal.apiserver.admission.review import BadAnswer, Write
from kubelocal.apiserver.calls import ApiTarget, Caller, User
from kubelocal.apiserver.schema.resources import MUTATING_WEBHOOKS, NAMESPACES, NODES, PODS

CALLER = Caller(user=User(name="me"))
POD = ApiTarget(resource=PODS, namespace="d", name="a")


def rule(**changes: Any) -> dict[str, Any]:
    base = {
        "operations": ["CREATE"],
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["pods"],
    }
    return {"rules": [base | changes]}


def write(**body: Any) -> Write:
    new = {"metadata": {"name": "a"}, **body}
    return Write(target=POD, caller=CALLER, operation="CREATE", new=new, old=None)


@pytest.mark.parametrize(
    ("hook", "target", "operation", "matches"),
    [
        (rule(), POD, "CREATE", True),
        (rule(), POD, "UPDATE", False),
        (rule(operations=["*"]), POD, "DELETE", True),
        (rule(apiGroups=["apps"]), POD, "CREATE", False),
        (rule(resources=["*"]), POD, "CREATE", True),
        (rule(resources=["pods/*"]), POD, "CREATE", True),
        (rule(scope="Cluster"), POD, "CREATE", False),
        (rule(resources=["nodes"], scope="Cluster"), ApiTarget(resource=NODES), "CREATE", True),
        (
            rule(),
            ApiTarget(resource=PODS, namespace="d", name="a", subresource="status"),
            "CREATE",
            False,
        ),
        (
            rule(resources=["*/binding"]),
            ApiTarget(resource=PODS, namespace="d", name="a", subresource="binding"),
            "CREATE",
            True,
        ),
        (
            rule(apiGroups=["*"], resources=["*"]),
            ApiTarget(resource=MUTATING_WEBHOOKS),
            "CREATE",
            False,
        ),
    ],
)
def test_rules(hook: dict[str, Any], target: ApiTarget, operation: str, matches: bool) -> None:
    assert review.rules_match(hook, target, operation) is matches


def test_selectors_look_at_the_namespace_and_the_object() -> None:
    hook = {"namespaceSelector": {"matchLabels": {"gpu": "on"}}}
    assert review.selectors_match(hook, write(), {"gpu": "on"})
    assert not review.selectors_match(hook, write(), {})
    assert review.selectors_match(hook, write(), None), "cluster scoped"
    namespace = Write(
        target=ApiTarget(resource=NAMESPACES, name="n"),
        caller=CALLER,
        operation="CREATE",
        new={"metadata": {"labels": {"gpu": "on"}}},
        old=None,
    )
    assert review.selectors_match(hook, namespace, None)


def test_conditions_in_cel() -> None:
    hook = {"matchConditions": [{"name": "n", "expression": "object.metadata.name == 'a'"}]}
    assert review.conditions_hold(hook, write())
    hook["matchConditions"].append({"name": "m", "expression": "request.operation == 'DELETE'"})
    assert not review.conditions_hold(hook, write())


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"<html>", "as JSON"),
        (b"[]", "as JSON"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1"}', "expected webhook"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', "response.uid"),
    ],
)
def test_answers_that_are_none(answer: bytes, text: str) -> None:
    with pytest.raises(BadAnswer, match=text):
        review.read_answer("u", answer)


def test_a_patch_applies_to_a_copy() -> None:
    body = {"metadata": {"name": "a"}}
    steps = [{"op": "add", "path": "/metadata/labels", "value": {"x": "y"}}]
    response = {"patch": base64.b64encode(orjson.dumps(steps)).decode()}
    assert review.apply_patch(response, body)["metadata"]["labels"] == {"x": "y"}
    assert body == {"metadata": {"name": "a"}}
    with pytest.raises(BadAnswer, match="not a JSON patch"):
        review.apply_patch({"patch": "%%%"}, body)


def test_a_condition_that_is_false_counts_before_one_that_fails() -> None:
    fails, is_false = {"expression": "object.nothing.here == 1"}, {"expression": "false"}

    for conditions in ([fails, is_false], [is_false, fails]):
        assert not review.conditions_hold({"matchConditions": conditions}, write())
    with pytest.raises(CelError):
        review.conditions_hold({"matchConditions": [fails]}, write())
