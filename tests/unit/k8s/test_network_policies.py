"""The NetworkPolicies of `k8s/base` allow the connections that its parts need, and no others.

The needed connections are derived from the manifests and the output of `hami-bootstrap`: the
addresses of our Services in a pod's variables, files and Secrets. No network plugin is tested here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from hami_webhook.credentials import missing

BASE = Path(__file__).parents[3] / "k8s" / "base"
SECRETS = missing({}, "hami-system")
NAME = "app.kubernetes.io/name"
ADDRESS = re.compile(r"([a-z]+)://[^/\s]*?(hami-[a-z-]+)\.hami-system\.svc(?::(\d+))?")
PROMETHEUS, OPERATORS, ANYBODY = "hami.io/metrics", "hami.io/operators", "anybody"


class Arrow(NamedTuple):
    source: str
    target: str
    port: int


@cache
def objects() -> tuple[dict[str, Any], ...]:
    return tuple(
        each
        for path in sorted(BASE.rglob("*.yaml"))
        for each in yaml.load_all(path.read_text(), yaml.CSafeLoader)
        if each
    )


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [each for each in objects() if each["kind"] in kinds]


def templates() -> dict[str, dict[str, Any]]:
    """List the pod templates of the manifests, by the object's name."""
    found = {
        each["metadata"]["name"]: each["spec"]["template"]
        for each in of_kind("Deployment", "StatefulSet", "DaemonSet", "Job")
    }
    for each in of_kind("CronJob"):
        found[each["metadata"]["name"]] = each["spec"]["jobTemplate"]["spec"]["template"]
    return found


PODS = {
    name: (template.get("metadata", {}).get("labels", {}), template["spec"])
    for name, template in templates().items()
}


def port_of(target: str, name: str) -> int:
    container = PODS[target][1]["containers"][0]
    [found] = [each["containerPort"] for each in container["ports"] if each["name"] == name]
    return int(found)


def behind(service: str, port: int | None) -> int:
    """The pods' port behind that of a Service; https by default."""
    [found] = [each for each in of_kind("Service") if each["metadata"]["name"] == service]
    [target] = [
        each["targetPort"] for each in found["spec"]["ports"] if each["port"] == (port or 443)
    ]
    return port_of(found["spec"]["selector"][NAME], target)


def texts_of(spec: dict[str, Any]) -> Iterator[str]:
    """All texts in which a pod may find an address."""
    maps = {each["metadata"]["name"]: each["data"] for each in of_kind("ConfigMap")}
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for entry in container.get("env", ()):
            yield str(entry.get("value", ""))
            secret = entry.get("valueFrom", {}).get("secretKeyRef", {})
            # An optional Secret is of the user's own server.
            if secret.get("key") in ("dsn", "url") and not secret.get("optional"):
                yield SECRETS[secret["name"]][secret["key"]].decode()
    for volume in spec.get("volumes", ()):
        yield from maps.get(volume.get("configMap", {}).get("name"), {}).values()


def list_needed() -> set[Arrow]:
    arrows = {
        Arrow(name, service, behind(service, int(port) if port else None))
        for name, (_, spec) in PODS.items()
        for text in texts_of(spec)
        for _, service, port in ADDRESS.findall(text)
    }
    for each in of_kind("MutatingWebhookConfiguration"):
        for webhook in each["webhooks"]:
            service = webhook["clientConfig"]["service"]
            arrows.add(Arrow(ANYBODY, service["name"], behind(service["name"], service["port"])))
    for name, template in templates().items():
        notes = template.get("metadata", {}).get("annotations", {})
        if notes.get("prometheus.io/scrape") == "true":
            arrows.add(Arrow(PROMETHEUS, name, int(notes["prometheus.io/port"])))
    arrows.add(Arrow(OPERATORS, "hami-scheduler", port_of("hami-scheduler", "operator")))
    return arrows


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(
        rule["operator"] == "In" and labels.get(rule["key"]) in rule["values"]
        for rule in selector.get("matchExpressions", ())
    )


def peers(rule: dict[str, Any], side: str) -> Iterator[str]:
    if side not in rule:
        yield ANYBODY
    for peer in rule.get(side, ()):
        assert peer.keys() in ({"podSelector"}, {"namespaceSelector"}), "one or the other"
        if "podSelector" in peer:
            yield from (
                name for name, (has, _) in PODS.items() if selects(peer["podSelector"], has)
            )
        else:
            [(label, value)] = peer["namespaceSelector"]["matchLabels"].items()
            assert value == "enabled"
            yield label


def list_selected(policy: dict[str, Any]) -> list[str]:
    return [n for n, (has, _) in PODS.items() if selects(policy["spec"]["podSelector"], has)]


def allowed_in() -> set[Arrow]:
    return {
        Arrow(source, target, port_of(target, each["port"]))
        for policy in of_kind("NetworkPolicy")
        for target in list_selected(policy)
        for rule in policy["spec"].get("ingress", ())
        for source in peers(rule, "from")
        for each in rule["ports"]
    }


def test_what_comes_in_is_what_the_manifests_need() -> None:
    assert allowed_in() == list_needed()


def test_every_pod_is_closed_but_for_what_is_opened() -> None:
    closed = [
        each
        for each in of_kind("NetworkPolicy")
        if each["spec"]["podSelector"] == {} and each["spec"]["policyTypes"] == ["Ingress"]
    ]

    assert len(closed) == 1
    assert "ingress" not in closed[0]["spec"]


def test_a_pod_whose_ways_out_are_closed_still_reaches_what_it_needs() -> None:
    """Port 53 is the cluster's DNS, without which no name of a Service is an address."""
    bounded = {
        name: policy["spec"].get("egress", [])
        for policy in of_kind("NetworkPolicy")
        if "Egress" in policy["spec"]["policyTypes"]
        for name in list_selected(policy)
    }

    assert set(bounded) == {"hami-postgres", "hami-redis", "hami-nats", "hami-webhook"}
    for name, rules in bounded.items():
        out = {
            Arrow(name, target, port_of(target, each["port"]))
            for rule in rules
            for target in peers(rule, "to")
            if target != ANYBODY
            for each in rule["ports"]
        }
        names = [each["port"] for rule in rules if "to" not in rule for each in rule["ports"]]
        assert out == {arrow for arrow in list_needed() if arrow.source == name}
        assert names == ([53, 53] if out else [])


def test_no_store_is_reached_by_who_does_not_use_it() -> None:
    sources = {arrow.source for arrow in allowed_in() if arrow.target == "hami-redis"}

    assert sources == {"hami-scheduler"}
    assert not [arrow for arrow in allowed_in() if arrow.port == 8222]
