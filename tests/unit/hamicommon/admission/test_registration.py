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
    registration_of,
    webhook_configuration,
)
from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.k8s.types import Json
from hamicommon.vendors.registry import Vendors
from hypothesis import given, settings
from hypothesis import strategies as st

RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpumem")


def make_registration(**changes: Any) -> WebhookRegistration:
    values: dict[str, Any] = {"target": ServiceReference(), "resources": RESOURCES} | changes
    return WebhookRegistration(**values)


def webhook(**changes: Any) -> Any:
    return webhook_configuration(make_registration(**changes))["webhooks"][0]


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


def test_it_fails_closed_for_those_and_asks_for_nobody_else() -> None:
    rendered = webhook()

    assert rendered["failurePolicy"] == "Fail"
    assert rendered["timeoutSeconds"] == 5
    assert [condition["name"] for condition in rendered["matchConditions"]] == ["concerns-hami"]
    rules = [(rule["operations"], rule["resources"]) for rule in rendered["rules"]]
    assert rules == [(["CREATE"], ["pods"]), (["UPDATE"], ["pods/ephemeralcontainers"])]


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


def test_system_namespaces_and_labelled_ones_are_excluded_and_no_pod_is_by_its_own_label() -> None:
    rendered = webhook()

    names, label = rendered["namespaceSelector"]["matchExpressions"]
    assert {"kube-system", "hami-system"} <= set(names["values"])
    assert label == {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
    assert rendered["objectSelector"] == {}


def test_hamis_way_out_for_pods_comes_back_by_a_setting() -> None:
    label = {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}

    assert webhook(pods_may_opt_out=True)["objectSelector"] == {"matchExpressions": [label]}


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


GPU: Json = {"nvidia.com/gpu": "1"}
NEARLY: Json = {"nvidia.com/gpumemory": "1"}


@pytest.mark.parametrize(
    ("candidate", "concerns_us", "near_miss"),
    [
        pytest.param(pod(limits=GPU), True, False, id="limits"),
        pytest.param(pod(limits=GPU | NEARLY), True, False, id="ours and something like it"),
        pytest.param(pod(requests={"nvidia.com/gpumem": "1"}), True, False, id="requests"),
        pytest.param(pod(limits=GPU, init=True), True, False, id="init container"),
        pytest.param(pod(annotations={"hami.io/grant": "x"}), True, False, id="annotation of ours"),
        pytest.param(pod(limits={"nvidia.com/gpux": "1"}), False, True, id="a longer name"),
        pytest.param(pod(limits=NEARLY), False, True, id="nearly ours"),
        pytest.param(pod(requests=NEARLY, init=True), False, True, id="nearly ours, init"),
        pytest.param(pod(annotations={"nvidia.com/gpumem": "1"}), False, True, id="an amount"),
        pytest.param(pod(limits={"nvdia.com/gpu": "1"}), False, True, id="a domain nearly ours"),
        pytest.param(pod(limits={"intel.com/gpu": "1"}), False, True, id="another vendor's"),
        pytest.param(pod(limits={"cpu": "1", "hugepages-2Mi": "2Mi"}), False, False, id="others"),
        pytest.param(pod(annotations={"example.com/a": "x"}), False, False, id="annotation"),
        pytest.param(pod(), False, False, id="nothing"),
        pytest.param(pod(init=True), False, False, id="init container without"),
    ],
)
def test_pods_that_ask_for_other_extended_resources_come_to_the_webhook_that_fails_open(
    candidate: dict[str, Any], concerns_us: bool, near_miss: bool
) -> None:
    ours = [{"expression": match_expression(make_registration())}]
    assert holds(ours, candidate) is concerns_us
    assert holds(other_conditions(make_registration()), candidate) is near_miss
    assert holds(other_conditions(make_registration(every_pod=True)), candidate) is not concerns_us


def test_the_other_webhook_always_fails_open_and_is_left_out_on_an_old_server() -> None:
    first, other, quotas = webhook_configuration(make_registration())["webhooks"]

    assert (first["failurePolicy"], other["failurePolicy"]) == ("Fail", "Ignore")
    assert first["name"] != other["name"]
    assert first["rules"] == other["rules"]
    old = make_registration(match_conditions=False, failure_policy="Ignore")
    of_old = webhook_configuration(old)["webhooks"]
    assert [each["name"] for each in of_old] == [first["name"], quotas["name"]]
    assert not any("matchConditions" in each for each in of_old)


@pytest.mark.parametrize(
    ("target", "address"),
    [
        ("https://here:8443/webhook", {"url": "https://here:8443/quotas"}),
        (
            ServiceReference(namespace="n", name="w", port=1),
            {"service": {"namespace": "n", "name": "w", "port": 1, "path": "/quotas"}},
        ),
    ],
)
def test_quotas_of_extended_resources_come_to_a_path_of_their_own_that_fails_open(
    target: ServiceReference | str, address: dict[str, Any]
) -> None:
    quotas = webhook_configuration(make_registration(target=target))["webhooks"][-1]

    assert (quotas["failurePolicy"], quotas["clientConfig"]) == ("Ignore", address)
    asked = {(*rule["operations"], *rule["resources"]) for rule in quotas["rules"]}
    assert asked == {("CREATE", "resourcequotas"), ("UPDATE", "resourcequotas")}
    for hard, comes in (
        ({"nvidia.com/gpumem": "1", "cpu": "1"}, True),
        ({"limits.memory": "1Gi"}, False),
    ):
        assert holds(quotas["matchConditions"], {"spec": {"hard": hard}}) is comes


VENDORS = Vendors.from_config(device_config.load(None), enable_ascend=True, enable_iluvatar=True)
SERVED = VENDORS.resource_names
SHOWING = ("NVIDIA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES")
DOMAINS = {name.partition("/")[0] for name in SERVED}
resource = st.sampled_from(SERVED) | st.sampled_from(
    ("cpu", "memory", "nvidia.com/gpux", "xnvidia.com/gpu", "intel.com/gpu", "nvdia.com/gpu")
)
amounts = st.dictionaries(resource, st.sampled_from(("1", 1, "4Gi")), max_size=2)
paths = st.sampled_from(("/data", "/var/run/nvidia-container-devices/all", "/var/run"))
annotation = st.sampled_from(("hami.io/grant", "hami.io", "xhami.io/a", "nvidia.com/gpumem", "a/b"))
container = st.fixed_dictionaries(
    {"name": st.just("c")},
    optional={
        "resources": st.fixed_dictionaries({}, optional={"limits": amounts, "requests": amounts}),
        "env": st.lists(
            st.fixed_dictionaries(
                {"name": st.sampled_from((*SHOWING, "A", "XNVIDIA_VISIBLE_DEVICES"))},
                optional={"value": st.sampled_from(("", "none", "void", "all", "0", "GPU-1"))},
            ),
            max_size=2,
        ),
        "volumeMounts": st.lists(
            st.builds(lambda path: {"name": "v", "mountPath": path}, paths), max_size=2
        ),
    },
)
any_pod = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {}, optional={"annotations": st.dictionaries(annotation, st.just("v"), max_size=2)}
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(container, min_size=1, max_size=2)},
            optional={
                "initContainers": st.lists(container, max_size=2),
                "ephemeralContainers": st.lists(container, max_size=1),
            },
        ),
    }
)
PROGRAMS = [
    [
        celpy.Environment().program(celpy.Environment().compile(each["expression"]))
        for each in hook["matchConditions"]
    ]
    for hook in webhook_configuration(registration_of(VENDORS, target=ServiceReference()))[
        "webhooks"
    ][:2]
]


def all_containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    parts = ("containers", "initContainers", "ephemeralContainers")
    return [each for part in parts for each in spec.get(part, ())]


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
    shown = any(
        entry["name"] in SHOWING and entry.get("value") not in ("", "none", "void")
        for each in all_containers(spec)
        for entry in each.get("env", ())
    ) or any(
        "nvidia-container-devices" in mount["mountPath"]
        for each in all_containers(spec)
        for mount in each.get("volumeMounts", ())
    )
    ours = bool(asked & {*SERVED}) or any(key.startswith("hami.io/") for key in written) or shown
    near = any("/" in key for key in asked) or any(
        "/" in key and key.partition("/")[0] in DOMAINS for key in written
    )
    variables = {"object": celpy.json_to_cel(candidate)}

    called = [all(bool(each.evaluate(variables)) for each in hook) for hook in PROGRAMS]

    assert called == [ours, near and not ours]


STRICT_ONES = registration_of(VENDORS, target=ServiceReference())


def container_with(part: str, **fields: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"name": "d"}]}
    spec[part] = [*spec.get(part, ()), {"name": "c", **fields}]
    return {"metadata": {}, "spec": spec}


@pytest.mark.parametrize("part", ["containers", "initContainers", "ephemeralContainers"])
def test_a_pod_that_shows_itself_cards_comes_to_the_webhook_that_fails_closed(part: str) -> None:
    candidates = [
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, True),
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {}}}]}, True),
        ({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]}, False),
        ({"env": [{"name": "A", "value": "NVIDIA_VISIBLE_DEVICES"}]}, False),
        ({"volumeMounts": [{"mountPath": "/var/run/nvidia-container-devices/all"}]}, True),
        ({"volumeMounts": [{"mountPath": "/var/run"}]}, False),
    ]
    for fields, concerns_us in candidates:
        conditions = webhook_configuration(STRICT_ONES)["webhooks"][0]["matchConditions"]
        assert holds(conditions, container_with(part, **fields)) is concerns_us, fields


def test_where_tampering_is_allowed_no_pod_without_a_card_comes_for_it() -> None:
    allowing = registration_of(
        VENDORS, target=ServiceReference(), tampering=TamperingPolicy(mode="allow")
    )
    showing = container_with("containers", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    conditions = webhook_configuration(allowing)["webhooks"][0]["matchConditions"]

    assert not holds(conditions, showing)
