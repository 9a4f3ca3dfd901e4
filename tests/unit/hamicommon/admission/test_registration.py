"""The MutatingWebhookConfiguration, and its CEL condition run by a CEL interpreter."""

import base64
from typing import Any

import celpy
import pytest
from hamicommon import device_config
from hamicommon.admission.registration import (
    ServiceReference,
    WebhookRegistration,
    match_expression,
    other_conditions,
    webhook_configuration,
)
from hamicommon.vendors.registry import Vendors
from hypothesis import given, settings
from hypothesis import strategies as st

RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpumem")


def webhook(**changes: Any) -> Any:
    values: dict[str, Any] = {"target": ServiceReference(), "resources": RESOURCES} | changes
    return webhook_configuration(WebhookRegistration(**values))["webhooks"][0]


def pod(
    *, limits: Any = None, requests: Any = None, init: bool = False, annotations: Any = None
) -> dict[str, Any]:
    resources = {
        name: value for name, value in (("limits", limits), ("requests", requests)) if value
    }
    asking = {"name": "c", "resources": resources} if resources else {"name": "c"}
    plain = {"name": "d"}
    spec = {"containers": [plain], "initContainers": [asking]} if init else {"containers": [asking]}
    metadata = {"annotations": annotations} if annotations else {"name": "p"}
    return {"metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("candidate", "concerns_us"),
    [
        (pod(limits={"nvidia.com/gpu": "1"}), True),
        (pod(requests={"nvidia.com/gpumem": "1"}), True),
        (pod(limits={"nvidia.com/gpu": "1"}, init=True), True),
        (pod(annotations={"hami.io/grant": "x"}), True),
        (pod(limits={"cpu": "1"}, requests={"memory": "1"}), False),
        (pod(limits={"nvidia.com/gpux": "1"}), False),
        (pod(annotations={"example.com/a": "x"}), False),
        (pod(), False),
        (pod(init=True), False),
    ],
    ids=[
        "limits",
        "requests",
        "init container",
        "annotation of ours",
        "other resources",
        "a longer name",
        "another's annotation",
        "nothing",
        "init container without",
    ],
)
def test_only_pods_that_concern_us_meet_the_condition(
    candidate: dict[str, Any], concerns_us: bool
) -> None:
    environment = celpy.Environment()
    program = environment.program(environment.compile(match_expression(RESOURCES)))

    assert bool(program.evaluate({"object": celpy.json_to_cel(candidate)})) is concerns_us


def test_it_fails_closed_for_those_and_asks_for_nobody_else() -> None:
    rendered = webhook()

    assert rendered["failurePolicy"] == "Fail"
    assert rendered["timeoutSeconds"] == 5
    assert [condition["name"] for condition in rendered["matchConditions"]] == ["concerns-hami"]
    assert rendered["rules"][0]["operations"] == ["CREATE"]
    assert rendered["rules"][0]["resources"] == ["pods"]


def test_an_older_server_gets_no_condition_and_fails_open() -> None:
    rendered = webhook(match_conditions=False, failure_policy="Ignore")

    assert "matchConditions" not in rendered
    assert rendered["failurePolicy"] == "Ignore"


def test_failing_closed_without_a_condition_is_refused() -> None:
    with pytest.raises(ValueError, match="use Ignore"):
        webhook(match_conditions=False)


def test_no_resource_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="resources is empty"):
        webhook(resources=())


def test_system_namespaces_and_the_ignore_label_are_excluded() -> None:
    rendered = webhook()

    names, label = rendered["namespaceSelector"]["matchExpressions"]
    assert {"kube-system", "hami-system"} <= set(names["values"])
    assert label == {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
    assert rendered["objectSelector"]["matchExpressions"] == [label]


def test_a_service_or_an_address_can_be_the_target() -> None:
    service = webhook(target=ServiceReference(namespace="ns", name="w", port=8443))
    address = webhook(target="https://127.0.0.1:1/webhook", ca_bundle_pem=b"CA")

    assert service["clientConfig"] == {
        "service": {"namespace": "ns", "name": "w", "port": 8443, "path": "/webhook"}
    }
    assert address["clientConfig"] == {
        "url": "https://127.0.0.1:1/webhook",
        "caBundle": base64.b64encode(b"CA").decode(),
    }


def holds(conditions: Any, candidate: dict[str, Any]) -> bool:
    environment = celpy.Environment()
    variables = {"object": celpy.json_to_cel(candidate)}
    return all(
        bool(environment.program(environment.compile(each["expression"])).evaluate(variables))
        for each in conditions
    )


@pytest.mark.parametrize(
    ("candidate", "near_miss", "of_every_pod"),
    [
        (pod(limits={"nvidia.com/gpu": "1"}), False, False),
        (pod(limits={"nvidia.com/gpu": "1", "nvidia.com/gpumemory": "1"}), False, False),
        (pod(limits={"nvidia.com/gpumemory": "1"}), True, True),
        (pod(requests={"nvidia.com/gpumemory": "1"}, init=True), True, True),
        (pod(annotations={"nvidia.com/gpumem": "1000"}), True, True),
        (pod(limits={"intel.com/gpu": "1"}), False, True),
        (pod(), False, True),
    ],
    ids=[
        "asks for ours",
        "asks for ours and for something like it",
        "nearly ours",
        "nearly ours in an init container",
        "an amount as annotation",
        "another vendor's",
        "nothing",
    ],
)
def test_pods_that_ask_for_something_like_ours_come_to_the_webhook_that_fails_open(
    candidate: dict[str, Any], near_miss: bool, of_every_pod: bool
) -> None:
    assert holds(other_conditions(RESOURCES, every_pod=False), candidate) is near_miss
    assert holds(other_conditions(RESOURCES, every_pod=True), candidate) is of_every_pod


def test_the_other_webhook_always_fails_open_and_is_left_out_on_an_old_server() -> None:
    values: dict[str, Any] = {"target": ServiceReference(), "resources": RESOURCES}
    first, other = webhook_configuration(WebhookRegistration(**values))["webhooks"]

    assert (first["failurePolicy"], other["failurePolicy"]) == ("Fail", "Ignore")
    assert first["name"] != other["name"]
    assert first["rules"] == other["rules"]
    old = WebhookRegistration(**values, match_conditions=False, failure_policy="Ignore")
    assert len(webhook_configuration(old)["webhooks"]) == 1


SERVED = Vendors.from_config(
    device_config.load(None), enable_ascend=True, enable_iluvatar=True
).resource_names
DOMAINS = {name.partition("/")[0] for name in SERVED}
resource = st.sampled_from(SERVED) | st.sampled_from(
    ("cpu", "memory", "nvidia.com/gpux", "xnvidia.com/gpu", "intel.com/gpu", "nvdia.com/gpu")
)
amounts = st.dictionaries(resource, st.sampled_from(("1", 1, "4Gi")), max_size=2)
annotation = st.sampled_from(("hami.io/grant", "hami.io", "xhami.io/a", "nvidia.com/gpumem", "a/b"))
container = st.fixed_dictionaries(
    {"name": st.just("c")},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts})
    },
)
any_pod = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {}, optional={"annotations": st.dictionaries(annotation, st.just("v"), max_size=2)}
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(container, min_size=1, max_size=2)},
            optional={"initContainers": st.lists(container, max_size=2)},
        ),
    }
)
PROGRAMS = [
    [
        celpy.Environment().program(celpy.Environment().compile(each["expression"]))
        for each in hook["matchConditions"]
    ]
    for hook in webhook_configuration(
        WebhookRegistration(target=ServiceReference(), resources=SERVED)
    )["webhooks"]
]


@settings(max_examples=60)
@given(any_pod)
def test_the_expressions_choose_what_the_rule_in_python_chooses(candidate: dict[str, Any]) -> None:
    spec, written = candidate["spec"], candidate["metadata"].get("annotations", {})
    asked = {
        name
        for each in (*spec["containers"], *spec.get("initContainers", ()))
        for part in each.get("resources", {}).values()
        for name in part
    }
    ours = bool(asked & {*SERVED}) or any(key.startswith("hami.io/") for key in written)
    near = any("/" in key and key.partition("/")[0] in DOMAINS for key in {*asked, *written})
    variables = {"object": celpy.json_to_cel(candidate)}

    called = [all(bool(each.evaluate(variables)) for each in hook) for hook in PROGRAMS]

    assert called == [ours, near and not ours]
