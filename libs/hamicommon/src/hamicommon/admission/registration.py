"""Make the MutatingWebhookConfiguration object that registers our webhook.

Input: the address of the webhook, our resources, and the exclusions. Output: plain JSON that
`hamictl` creates on the local API server and that `k8s/` holds in rendered form (a test compares
them). The webhook itself is `hami_webhook`; `mutation.py` changes the pods.

It fails closed for pods that ask for our resources and open for all others: `matchConditions` keeps
every other pod away from us (API servers >= 1.28), so failing closed affects no other pod. An older
server drops the field silently; there the failure policy must be `Ignore`, and the node's check
before a container starts is the safety net.

It also fails closed for pods that ask for no card but set a variable or a mount by which a
container runtime shows them cards: image and spec of such a pod would see all of them.

Additions of ephemeral containers come to both webhooks by the same conditions. Updates of pods do
not: the API server lets no user change variables or mounts of an existing pod.

A pod can't opt out by its own label or scheduler name; a namespace can, by a label that its
operator sets. `pods_may_opt_out` restores HAMi's selector.

A second webhook of the same configuration always fails open. It sees pods that ask for an extended
resource but for none of ours, to warn of a typing error, and, if the device configuration changes
all pods, every other pod. A third one, which also fails open, sees ResourceQuotas: a limit that
nothing counts is refused.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hamicommon.admission.tampering.findings import STRICT, TamperingPolicy
from hamicommon.admission.tampering.guard import Guard
from hamicommon.k8s.types import Json
from hamicommon.vendors.registry import Vendors

FailurePolicy = Literal["Fail", "Ignore"]

CONFIGURATION_NAME = "hami-webhook"
CONFIGURATION_PATH = (
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/" + CONFIGURATION_NAME
)
WEBHOOK_NAME = "pods.webhook.hami.io"
OTHERS_NAME = "other-pods.webhook.hami.io"
QUOTAS_NAME = "quotas.webhook.hami.io"
WEBHOOK_PATH = "/webhook"
QUOTAS_PATH = "/quotas"
"""Path for ResourceQuotas; an older webhook answers 404 there, which counts as unavailable."""
IGNORE_LABEL = "hami.io/webhook"
IGNORE_VALUE = "ignore"
ANNOTATION_PREFIX = "hami.io/"

# Our answer takes milliseconds; longer than this means that we are unavailable, and a user waits
# for it.
TIMEOUT_S = 5

SYSTEM_NAMESPACES = ("hami-system", "kube-node-lease", "kube-public", "kube-system")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReference:
    """Kubernetes Service at which the API server reaches the webhook."""

    namespace: str = "hami-system"
    name: str = "hami-webhook"
    port: int = 443


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRegistration:
    """Values from which the MutatingWebhookConfiguration is made."""

    target: ServiceReference | str
    """Service of the webhook, or its address (https://host:port/webhook) outside the cluster."""
    resources: tuple[str, ...]
    """Resource names of all enabled vendors, such as `nvidia.com/gpu`."""
    ca_bundle_pem: bytes = b""
    """CA of the webhook's certificate; empty if something else injects it (cert-manager)."""
    failure_policy: FailurePolicy = "Fail"
    match_conditions: bool = True
    """False for API servers before 1.28; then `failure_policy` must be `Ignore`."""
    every_pod: bool = False
    """Whether pods without our resources are sent too, because settings change them.

    Such settings are `overwriteEnv` and a core policy; otherwise only pods that name something of
    our vendors' domains are sent.
    """
    guarded_variables: tuple[str, ...] = ()
    """Variables because of which a pod is sent to the webhook although it asks for no card."""
    request_folders: tuple[str, ...] = ()
    """Names of folders whose mounts have the same effect."""
    pods_may_opt_out: bool = False
    """Whether pods with the label `hami.io/webhook: ignore` are not sent, as with HAMi.

    Then every author of a pod can bypass what this webhook checks.
    """
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


def ca_bundle_problem(registration: Json) -> str:
    """Return why the API server can't trust the webhook by this object; empty if nothing is wrong.

    Input: the MutatingWebhookConfiguration. Each of its webhooks has its own bundle.
    """
    for hook in registration.get("webhooks") or ():
        bundle = hook["clientConfig"].get("caBundle") or ""
        if not bundle and "url" in hook["clientConfig"]:
            continue  # the API server's own authorities vouch for it
        if not bundle:
            return f"caBundle of {hook['name']} is empty"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=base64.b64decode(bundle, validate=True).decode())
        except (ValueError, ssl.SSLError):
            return f"caBundle of {hook['name']} holds no certificates"
        ends = [str(each["notAfter"]) for each in context.get_ca_certs()]
        if ends and all(ssl.cert_time_to_seconds(end) < time.time() for end in ends):
            return f"each certificate in caBundle of {hook['name']} has ended ({ends[-1]})"
    return ""


def registration_of(
    vendors: Vendors,
    *,
    target: ServiceReference | str,
    ca_bundle_pem: bytes = b"",
    failure_policy: FailurePolicy = "Fail",
    match_conditions: bool = True,
    pods_may_opt_out: bool = False,
    tampering: TamperingPolicy = STRICT,
) -> WebhookRegistration:
    """Return the registration for the enabled vendors and the variables that pods may not set."""
    guard = Guard.of(vendors, tampering)
    guards = tampering.mode != "allow"
    return WebhookRegistration(
        target=target,
        resources=vendors.resource_names,
        every_pod=vendors.change_every_pod,
        guarded_variables=guard.variables.in_every_pod if guards else (),
        request_folders=guard.mounts.request_folders if guards else (),
        ca_bundle_pem=ca_bundle_pem,
        failure_policy=failure_policy,
        match_conditions=match_conditions,
        pods_may_opt_out=pods_may_opt_out,
    )


def webhook_configuration(registration: WebhookRegistration) -> Json:
    """Return the MutatingWebhookConfiguration (admissionregistration.k8s.io/v1) as JSON."""
    concerned = match_expression(registration)
    webhooks = [_webhook(registration, WEBHOOK_NAME, registration.failure_policy)]
    quotas = _webhook(registration, QUOTAS_NAME, "Ignore", path=QUOTAS_PATH)
    quotas["rules"] = [_rule("CREATE", "resourcequotas"), _rule("UPDATE", "resourcequotas")]
    quotas["objectSelector"] = {}
    if registration.match_conditions:
        # An older server sends everything to the first one, which then fails open.
        webhooks[0]["matchConditions"] = [{"name": "concerns-hami", "expression": concerned}]
        others = _webhook(registration, OTHERS_NAME, "Ignore")
        others["matchConditions"] = other_conditions(registration)
        webhooks.append(others)
        extended = 'has(object.spec.hard) && object.spec.hard.exists(k, k.contains("/"))'
        quotas["matchConditions"] = [{"name": "limits-extended-resources", "expression": extended}]
    webhooks.append(quotas)
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
        "webhooks": webhooks,
    }


def _rule(operation: str, resource: str) -> Json:
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": [operation],
        "resources": [resource],
        "scope": "Namespaced",
    }


def _webhook(
    registration: WebhookRegistration,
    name: str,
    failure_policy: FailurePolicy,
    *,
    path: str = WEBHOOK_PATH,
) -> Json:
    return {
        "name": name,
        "admissionReviewVersions": ["v1", "v1beta1"],
        "sideEffects": "None",
        "failurePolicy": failure_policy,
        "timeoutSeconds": registration.timeout_s,
        "matchPolicy": "Equivalent",
        # A sidecar that another webhook injects after us may ask for a card: we look again.
        "reinvocationPolicy": "IfNeeded",
        "clientConfig": _client_config(registration, path),
        "rules": [_rule("CREATE", "pods"), _rule("UPDATE", "pods/ephemeralcontainers")],
        "namespaceSelector": {
            "matchExpressions": [
                _not_in("kubernetes.io/metadata.name", registration.excluded_namespaces),
                _not_in(IGNORE_LABEL, (IGNORE_VALUE,)),
            ]
        },
        "objectSelector": (
            {"matchExpressions": [_not_in(IGNORE_LABEL, (IGNORE_VALUE,))]}
            if registration.pods_may_opt_out
            else {}
        ),
    }


def other_conditions(registration: WebhookRegistration) -> list[Json]:
    """Return the match conditions of the webhook whose failure admits pods (`Ignore`).

    Those that do not come to the other, and, unless it is every pod, that ask for an extended
    resource or have an annotation of one of our vendors' domains.

    `nvidia.com/gpumemory` and `nvdia.com/gpu` are no resources of ours, and no other component
    would warn of them.
    """
    conditions = [
        {"name": "asks-for-nothing-of-ours", "expression": f"!({match_expression(registration)})"}
    ]
    if not registration.every_pod:
        domains = sorted({name.partition("/")[0] for name in registration.resources})
        near = f"k.matches({_any_of(domains, '/')})"
        asks = " || ".join(
            f'(has(c.resources.{part}) && c.resources.{part}.exists(k, k.contains("/")))'
            for part in ("limits", "requests")
        )
        wants = f"has(c.resources) && ({asks})"
        found = " || ".join(
            f"(has(object.{part}) && object.{part}.exists({var}, {what}))"
            for part, var, what in (
                ("spec.containers", "c", wants),
                ("spec.initContainers", "c", wants),
                ("metadata.annotations", "k", near),
            )
        )
        conditions.append({"name": "looks-like-ours", "expression": found})
    return conditions


def match_expression(registration: WebhookRegistration) -> str:
    """Return the CEL expression for whether a pod must be sent to the webhook.

    It must be if a container asks for one of our resources, the pod has one of our annotations, or
    a container would see cards without asking.

    The annotations count because only the scheduler may set some of them: the webhook removes those
    from a new pod.
    """
    # One pattern instead of a list: it is compared once per name, here and in our emulator.
    one_of_ours = _any_of(sorted(set(registration.resources)), "$")
    asks = " || ".join(
        f"(has(c.resources.{part}) && c.resources.{part}.exists(r, r.matches({one_of_ours})))"
        for part in ("limits", "requests")
    )
    wants = f"has(c.resources) && ({asks})"
    pod = "object.spec"
    found = (
        f"{pod}.containers.exists(c, {wants})"
        f" || (has({pod}.initContainers) && {pod}.initContainers.exists(c, {wants}))"
        " || (has(object.metadata.annotations) && "
        f"object.metadata.annotations.exists(a, a.startsWith({json.dumps(ANNOTATION_PREFIX)})))"
    )
    takes = _takes_cards(registration)
    if takes:
        found += "".join(
            f" || (has({pod}.{part}) && {pod}.{part}.exists(c, {takes}))"
            for part in ("containers", "initContainers", "ephemeralContainers")
        )
    return found


def _takes_cards(registration: WebhookRegistration) -> str:
    """Return CEL for containers that may get cards by a variable or a mount; empty: none may.

    It finds too many rather than too few: a mount is judged by us, whose path has the folder's name
    anywhere, and a variable that is set from elsewhere.
    """
    ways = []
    if registration.guarded_variables:
        names = json.dumps(sorted(registration.guarded_variables))
        hidden = '["", "none", "void"]'
        ways.append(
            f"(has(c.env) && c.env.exists(e, e.name in {names} && "
            f"!(has(e.value) && e.value in {hidden})))"
        )
    ways += [
        "(has(c.volumeMounts) && c.volumeMounts.exists(m, "
        f"m.mountPath.contains({json.dumps(folder)})))"
        for folder in sorted(registration.request_folders)
    ]
    return " || ".join(ways)


def _any_of(names: Iterable[str], end: str) -> str:
    """Return a regular expression (RE2) for any of the names, as a CEL string.

    The dots in it stand for any character, which keeps names readable and costs nothing: no domain
    is one of these but for its dot.
    """
    return json.dumps(f"^({'|'.join(names)}){end}")


def _not_in(key: str, values: Iterable[str]) -> Json:
    return {"key": key, "operator": "NotIn", "values": list(values)}


def _client_config(registration: WebhookRegistration, path: str) -> Json:
    config: Json
    if isinstance(registration.target, str):
        config = {"url": registration.target.removesuffix(WEBHOOK_PATH) + path}
    else:
        service = registration.target
        config = {
            "service": {
                "namespace": service.namespace,
                "name": service.name,
                "port": service.port,
                "path": path,
            }
        }
    if registration.ca_bundle_pem:
        config["caBundle"] = base64.b64encode(registration.ca_bundle_pem).decode()
    return config
