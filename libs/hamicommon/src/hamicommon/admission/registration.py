"""How our webhook is registered: the MutatingWebhookConfiguration object, rendered by one function.

In: where the webhook is reached, which resources are ours, what is excluded. Out: plain JSON that
`hamictl` creates on the local API server and that `k8s/` holds in rendered form (a test compares
them). The webhook itself is `hami_webhook`; what it does to a pod is `mutation.py`.

Closed for pods that ask for our resources, open for all others: `matchConditions` keeps every other
pod away from us (API servers >= 1.28), so failing closed costs nobody else anything. An older
server drops the field without a word; there the failure policy must be `Ignore`, and the node's
check before a container starts is the net.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]
FailurePolicy = Literal["Fail", "Ignore"]

CONFIGURATION_NAME = "hami-webhook"
WEBHOOK_NAME = "pods.webhook.hami.io"
WEBHOOK_PATH = "/webhook"
IGNORE_LABEL = "hami.io/webhook"
IGNORE_VALUE = "ignore"
ANNOTATION_PREFIX = "hami.io/"

# Our answer takes milliseconds; longer than this means that we are away, and a user waits for it.
TIMEOUT_S = 5

SYSTEM_NAMESPACES = ("hami-system", "kube-node-lease", "kube-public", "kube-system")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReference:
    """The webhook as a Service of the cluster."""

    namespace: str = "hami-system"
    name: str = "hami-webhook"
    port: int = 443


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What the API server has to know to call us."""

    target: ServiceReference | str
    """The Service, or the whole address (https://host:port/webhook) of a webhook outside."""
    resources: tuple[str, ...]
    """Every resource name of every vendor switched on, such as `nvidia.com/gpu`."""
    ca_bundle_pem: bytes = b""
    """The CA of the webhook's certificate; empty when something else injects it (cert-manager)."""
    failure_policy: FailurePolicy = "Fail"
    match_conditions: bool = True
    """False for API servers before 1.28; then `failure_policy` must be `Ignore`."""
    excluded_namespaces: tuple[str, ...] = SYSTEM_NAMESPACES
    timeout_s: int = TIMEOUT_S

    def __post_init__(self) -> None:
        if not self.resources:
            raise ValueError("resources is empty: name at least one, such as nvidia.com/gpu")
        if not self.match_conditions and self.failure_policy == "Fail":
            raise ValueError(
                "failure_policy is Fail without match_conditions: "
                "every pod of the cluster would wait for this webhook; use Ignore"
            )


def webhook_configuration(registration: Registration) -> Json:
    """The MutatingWebhookConfiguration (admissionregistration.k8s.io/v1) of our webhook."""
    webhook: Json = {
        "name": WEBHOOK_NAME,
        "admissionReviewVersions": ["v1", "v1beta1"],
        "sideEffects": "None",
        "failurePolicy": registration.failure_policy,
        "timeoutSeconds": registration.timeout_s,
        "matchPolicy": "Equivalent",
        # A sidecar that another webhook injects after us may ask for a card: we look again.
        "reinvocationPolicy": "IfNeeded",
        "clientConfig": _client_config(registration),
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
                "scope": "Namespaced",
            }
        ],
        "namespaceSelector": {
            "matchExpressions": [
                _not_in("kubernetes.io/metadata.name", registration.excluded_namespaces),
                _not_in(IGNORE_LABEL, (IGNORE_VALUE,)),
            ]
        },
        "objectSelector": {"matchExpressions": [_not_in(IGNORE_LABEL, (IGNORE_VALUE,))]},
    }
    if registration.match_conditions:
        webhook["matchConditions"] = [
            {"name": "concerns-hami", "expression": match_expression(registration.resources)}
        ]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {
            "name": CONFIGURATION_NAME,
            "labels": {
                "app.kubernetes.io/name": "hami-webhook",
                "app.kubernetes.io/part-of": "hami",
            },
        },
        "webhooks": [webhook],
    }


def match_expression(resources: Iterable[str]) -> str:
    """CEL: a container asks for one of `resources`, or the pod carries an annotation of ours.

    The annotations count because some of them are the scheduler's alone, and the webhook drops
    them: a pod shall not be able to bring its own.
    """
    names = json.dumps(sorted(set(resources)))
    asks = " || ".join(
        f"(has(c.resources.{part}) && c.resources.{part}.exists(r, r in {names}))"
        for part in ("limits", "requests")
    )
    wants = f"has(c.resources) && ({asks})"
    pod = "object.spec"
    return (
        f"{pod}.containers.exists(c, {wants})"
        f" || (has({pod}.initContainers) && {pod}.initContainers.exists(c, {wants}))"
        " || (has(object.metadata.annotations) && "
        f"object.metadata.annotations.exists(a, a.startsWith({json.dumps(ANNOTATION_PREFIX)})))"
    )


def _not_in(key: str, values: Iterable[str]) -> Json:
    return {"key": key, "operator": "NotIn", "values": list(values)}


def _client_config(registration: Registration) -> Json:
    config: Json
    if isinstance(registration.target, str):
        config = {"url": registration.target}
    else:
        service = registration.target
        config = {
            "service": {
                "namespace": service.namespace,
                "name": service.name,
                "port": service.port,
                "path": WEBHOOK_PATH,
            }
        }
    if registration.ca_bundle_pem:
        config["caBundle"] = base64.b64encode(registration.ca_bundle_pem).decode()
    return config
