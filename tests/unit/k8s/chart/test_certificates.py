"""The Helm chart with cert-manager."""

from __future__ import annotations

import pytest
import yaml

from tests.unit.k8s.chart.rendered import (
    HELM,
    K8S,
    Render,
    containers,
    environment,
    key_of,
    pod_of,
)

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not installed")


def test_with_cert_manager_the_chart_does_what_the_component_does(render: Render) -> None:
    component = K8S / "components" / "cert-manager"
    patches = yaml.safe_load((component / "kustomization.yaml").read_text())["patches"]
    [role] = [
        step["value"]
        for each in patches
        if each.get("target") == {"kind": "Role", "name": "hami-webhook-certificate"}
        for step in yaml.safe_load(each["patch"])
    ]
    before = render()

    after = render({"scheduler": {"certManager": {"enabled": True}}})

    made = {
        key_of(each) for each in yaml.safe_load_all((component / "certificates.yaml").read_text())
    }
    assert after.keys() - before.keys() == made
    assert before.keys() - after.keys() == {
        (kind, "hami-webhook-certificate") for kind in ("ClusterRole", "ClusterRoleBinding")
    }
    hook = after["MutatingWebhookConfiguration", "hami-webhook"]["metadata"]["annotations"]
    assert hook == {"cert-manager.io/inject-ca-from": "hami-system/hami-webhook"}
    assert after["Role", "hami-webhook-certificate"]["rules"] == role
    rules = after["Role", "hami-bootstrap"]["rules"]
    assert not any("update" in rule["verbs"] for rule in rules)
    for key in (("Job", "hami-bootstrap"), ("CronJob", "hami-webhook-certificate")):
        [container] = containers(after[key])
        assert environment(container)["HAMI_WEBHOOK_CERTIFICATE_ISSUE"] == "false"


def test_every_secret_of_a_certificate_is_mounted_by_somebody(render: Render) -> None:
    rendered = render({"scheduler": {"certManager": {"enabled": True}}}, namespace="gpu")

    issued = {
        each["spec"]["secretName"]: each["spec"]
        for (kind, _), each in rendered.items()
        if kind == "Certificate"
    }
    mounted = {
        volume["secret"]["secretName"]
        for each in rendered.values()
        for volume in pod_of(each).get("volumes", ())
        if "secret" in volume
    }
    assert issued.keys() == {name for name in mounted if name.endswith("-tls")}
    for name, spec in issued.items():
        served = name.removesuffix("-tls")
        if "server auth" in spec["usages"]:
            assert f"{served}.gpu.svc" in spec["dnsNames"]
