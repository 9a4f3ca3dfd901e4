"""AdmissionReview v1: which webhooks a write needs, the call, and the answer.

The rules are pure; `WebhookClient` calls over HTTPS. A service address is resolved by the
configured map, because no service network is emulated; the certificate is still checked against
`<service>.<namespace>.svc`, as the real server does.
Source: apiserver `pkg/admission/plugin/webhook`.
"""

from __future__ import annotations

import base64
import binascii
import ssl
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import httpx
import orjson
from hamicommon.errors import Unavailable
from hamicommon.k8s.types import Json

from kubelocal.apiserver.calls import ApiTarget, Caller
from kubelocal.apiserver.errors import ApiError
from kubelocal.apiserver.kinds.patch import apply_json_patch
from kubelocal.apiserver.schema.resources import VERSION
from kubelocal.apiserver.storage.selectors import from_label_selector

_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions"}


class BadAnswer(ValueError):
    """Error: the webhook's answer is malformed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Write to be admitted; `new` and `old` have kind and apiVersion, or are None."""

    target: ApiTarget
    caller: Caller
    operation: str
    new: Json | None
    old: Json | None

    def request(self, uid: str) -> Json:
        """Return the `request` of the review."""
        resource = self.target.resource
        kind = {"group": resource.group, "version": VERSION, "kind": resource.kind}
        plural = {
            "group": resource.group,
            "version": VERSION,
            "resource": resource.plural,
        }
        request: Json = {
            "uid": uid,
            "kind": kind,
            "resource": plural,
            "requestKind": kind,
            "requestResource": plural,
            "operation": self.operation,
            "userInfo": self.caller.user.info(),
            "object": self.new,
            "oldObject": self.old,
            "dryRun": self.caller.dry_run,
            "options": {
                "kind": _OPTIONS[self.operation],
                "apiVersion": "meta.k8s.io/v1",
            },
        }
        if self.target.name:
            request["name"] = self.target.name
        if self.target.namespace:
            request["namespace"] = self.target.namespace
        if self.target.subresource:
            request["subResource"] = request["requestSubResource"] = self.target.subresource
        return request


def rules_match(hook: Json, target: ApiTarget, operation: str) -> bool:
    """Return whether one of the webhook's rules covers this operation on this resource."""
    resource = target.resource
    if resource.group == "admissionregistration.k8s.io":
        return False  # or a broken webhook could never be removed
    path = f"{resource.plural}/{target.subresource}" if target.subresource else resource.plural
    return any(
        _covers(rule.get("operations"), operation)
        and _covers(rule.get("apiGroups"), resource.group)
        and _covers(rule.get("apiVersions"), VERSION)
        and any(_resource_covers(pattern, path) for pattern in rule.get("resources", []))
        and rule.get("scope", "*") in ("*", "Namespaced" if resource.namespaced else "Cluster")
        for rule in hook.get("rules", [])
    )


def selectors_match(hook: Json, write: Write, namespace_labels: Json | None) -> bool:
    """Return whether namespace and object are selected; None: the object has no namespace."""
    if write.target.resource.kind == "Namespace":
        namespace_labels = ((write.new or write.old or {}).get("metadata") or {}).get("labels", {})
    if namespace_labels is not None and not from_label_selector(hook.get("namespaceSelector"))(
        namespace_labels
    ):
        return False
    wanted = from_label_selector(hook.get("objectSelector"))
    return any(
        wanted((body.get("metadata") or {}).get("labels") or {})
        for body in (write.new, write.old)
        if body is not None
    )


def conditions_hold(hook: Json, write: Write) -> bool:
    """Return whether all matchConditions are true.

    One that is false counts before one that fails, whatever their order.

    Raises: CelError where one fails and none is false.
    """
    conditions = hook.get("matchConditions")
    if not conditions:
        return True
    variables: dict[str, Any] = {
        "object": write.new,
        "oldObject": write.old,
        "request": write.request(""),
    }
    failed: CelError | None = None
    for each in conditions:
        try:
            if not holds(each["expression"], variables):
                return False
        except CelError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return True


def review(write: Write) -> tuple[str, bytes]:
    """Return the request's uid and the body of the AdmissionReview."""
    uid = str(uuid.uuid4())
    body = {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": write.request(uid),
    }
    return uid, orjson.dumps(body)


def read_answer(uid: str, body: bytes) -> Json:
    """Return the `response` of the answer. Raises: BadAnswer for another uid or version."""
    try:
        answer = orjson.loads(body)
        versions = (answer.get("apiVersion"), answer.get("kind"))
        response: Json = answer.get("response") or {}
    except (orjson.JSONDecodeError, AttributeError) as error:
        raise BadAnswer(f"couldn't read the answer as JSON: {error}") from error
    if versions != ("admission.k8s.io/v1", "AdmissionReview"):
        raise BadAnswer(
            "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, "
            f"got {versions[0]}, Kind={versions[1]}"
        )
    if response.get("uid") != uid:
        raise BadAnswer(f'expected response.uid="{uid}", got "{response.get("uid")}"')
    if response.get("patch") and response.get("patchType") != "JSONPatch":
        raise BadAnswer(f'invalid patchType "{response.get("patchType")}", expected "JSONPatch"')
    return response


def denial(name: str, response: Json) -> ApiError:
    """Return the refusal that the client gets."""
    status = response.get("status") or {}
    denied = f'admission webhook "{name}" denied the request'
    if text := status.get("message") or status.get("reason"):
        message = f"{denied}: {text}"
    else:
        message = f"{denied} without explanation"
    code = max(int(status.get("code") or 0), 400)
    return ApiError(code, status.get("reason", ""), message, status.get("details"))


def apply_patch(response: Json, body: Json) -> Json:
    """Return the object after the webhook's patch.

    Raises: BadAnswer if the patch does not apply.
    """
    encoded = response.get("patch")
    if not encoded:
        return body
    try:
        operations = orjson.loads(base64.b64decode(encoded, validate=True))
        # The patch works in place; a failed one must not leave a half-changed object.
        return apply_json_patch(orjson.loads(orjson.dumps(body)), operations)
    except (binascii.Error, orjson.JSONDecodeError) as error:
        raise BadAnswer(f"the patch is not a JSON patch: {error}") from error
    except ApiError as error:
        raise BadAnswer(f"the patch does not apply: {error.details}") from error


def _covers(patterns: list[str] | None, value: str) -> bool:
    return patterns is not None and ("*" in patterns or value in patterns)


def _resource_covers(pattern: str, path: str) -> bool:
    plural, _, subresource = path.partition("/")
    wanted, slash, wanted_sub = pattern.partition("/")
    if not slash:
        return not subresource and wanted in ("*", plural)
    return wanted in ("*", plural) and wanted_sub in ("*", subresource)


# More than the answers of a webhook ever need; bounds the sockets of a burst of pods.
_CONNECTIONS = httpx.Limits(max_connections=64, max_keepalive_connections=16)


class WebhookClient:
    """Client of webhooks.

    `services` maps `namespace/name` or `namespace/name:port` to `host:port`.
    """

    def __init__(self, services: Mapping[str, str]) -> None:
        self._services = dict(services)
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def post(self, config: Json, body: bytes, timeout_s: float) -> bytes:
        """Send a review to the webhook of a `clientConfig`; return the answer.

        Raises: Unavailable where there is no answer with status 200 in time.
        """
        shown, address, host = self._address(config)
        client = self._client(config.get("caBundle", ""))
        extensions = {"sni_hostname": host.partition(":")[0]} if host else {}
        headers = {"content-type": "application/json", "accept": "application/json"}
        if host:
            headers["host"] = host
        try:
            answer = await client.post(
                f"{address}?timeout={timeout_s:g}s",
                content=body,
                headers=headers,
                extensions=extensions,
                timeout=timeout_s,
            )
        except httpx.TimeoutException as error:
            raise Unavailable(f'Post "{shown}": context deadline exceeded') from error
        except httpx.HTTPError as error:
            raise Unavailable(f'Post "{shown}": {error}') from error
        if answer.status_code != 200:
            text = answer.text[:200]
            raise Unavailable(f"the server answered {answer.status_code}: {text}")
        return answer.content

    async def close(self) -> None:
        """Close the connections to the webhooks."""
        for client in self._clients.values():
            await client.aclose()

    def _address(self, config: Json) -> tuple[str, str, str]:
        """Return the displayed address, the address to connect to, and the name to verify or ""."""
        if url := config.get("url"):
            return url, url, ""
        service = config.get("service", {})
        name = f"{service.get('namespace', '')}/{service.get('name', '')}"
        port = service.get("port", 443)
        path = service.get("path", "").lstrip("/")
        host = f"{service.get('name', '')}.{service.get('namespace', '')}.svc"
        shown = f"https://{host}:{port}/{path}"
        dial = self._services.get(f"{name}:{port}") or self._services.get(name)
        if dial is None:
            raise Unavailable(f'Post "{shown}": service "{service.get("name", "")}" not found')
        return shown, f"https://{dial}/{path}", f"{host}:{port}"

    def _client(self, bundle: str) -> httpx.AsyncClient:
        client = self._clients.get(bundle)
        if client is None:
            client = httpx.AsyncClient(verify=_trust(bundle), limits=_CONNECTIONS, trust_env=False)
            self._clients[bundle] = client
        return client


def _trust(bundle: str) -> ssl.SSLContext:
    if not bundle:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    except (ssl.SSLError, binascii.Error, UnicodeDecodeError) as error:
        raise Unavailable(f"caBundle has no certificate in PEM form: {error}") from error


class CelError(ValueError):
    """Error: the expression is malformed, or its evaluation failed."""


@lru_cache(maxsize=256)
def _program(expression: str) -> Any:
    # Imported on first use: it takes a quarter of a second, and few clusters have conditions.
    from celpy import Environment
    from celpy.celparser import CELParseError

    environment = Environment()
    try:
        return environment.program(environment.compile(expression))
    except CELParseError as error:
        raise CelError(f"expression '{expression}' does not parse: {error}") from error


def holds(expression: str, variables: dict[str, Any]) -> bool:
    """Return whether the expression is true for `variables` (decoded JSON).

    Raises: CelError where it fails or does not give a boolean.
    """
    program = _program(expression)
    from celpy.adapter import json_to_cel
    from celpy.celtypes import BoolType
    from celpy.evaluation import CELEvalError

    activation = {name: json_to_cel(value) for name, value in variables.items()}
    try:
        result = program.evaluate(activation)
    except CELEvalError as error:
        raise CelError(f"expression '{expression}' resulted in error: {error}") from error
    if not isinstance(result, BoolType | bool):
        raise CelError(f"expression '{expression}' must evaluate to bool")
    return bool(result)
