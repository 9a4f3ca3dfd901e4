"""The AdmissionReview v1 protocol, pure: which webhook a write concerns, what is sent, what the
answer means.

Source: apiserver `pkg/admission/plugin/webhook`.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from dataclasses import dataclass
from typing import Any

import orjson
from hamicommon.k8s.types import Json

from kubelocal.apiserver.admission import cel
from kubelocal.apiserver.calls import ApiTarget, Caller
from kubelocal.apiserver.errors import ApiError
from kubelocal.apiserver.kinds.patch import apply_json_patch
from kubelocal.apiserver.storage.selectors import from_label_selector

_OPTIONS = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}


class BadAnswer(ValueError):
    """The webhook answered something that is no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write on its way: `new` and `old` carry kind and apiVersion; None where there is none."""

    target: ApiTarget
    caller: Caller
    operation: str
    new: Json | None
    old: Json | None
    kind: Json | None = None  # of the object, where it is not the resource's own (Binding)

    def request(self, uid: str) -> Json:
        """The `request` of the review."""
        resource = self.target.resource
        kind = self.kind or {
            "group": resource.group,
            "version": resource.version,
            "kind": resource.kind,
        }
        plural = {
            "group": resource.group,
            "version": resource.version,
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
    """Whether one of the webhook's rules covers this operation on this resource."""
    resource = target.resource
    if resource.group == "admissionregistration.k8s.io":
        return False  # or a broken webhook could never be removed
    path = f"{resource.plural}/{target.subresource}" if target.subresource else resource.plural
    return any(
        _covers(rule.get("operations"), operation)
        and _covers(rule.get("apiGroups"), resource.group)
        and _covers(rule.get("apiVersions"), resource.version)
        and any(_resource_covers(pattern, path) for pattern in rule.get("resources", []))
        and rule.get("scope", "*") in ("*", "Namespaced" if resource.namespaced else "Cluster")
        for rule in hook.get("rules", [])
    )


def selectors_match(hook: Json, write: Write, namespace_labels: Json | None) -> bool:
    """Whether the namespace and the object are selected; None: the object is in no namespace."""
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
    """Whether all matchConditions are true.

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
    failed: cel.CelError | None = None
    for each in conditions:
        try:
            if not cel.holds(each["expression"], variables):
                return False
        except cel.CelError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return True


def review(write: Write) -> tuple[str, bytes]:
    """The request's uid and the body of the AdmissionReview."""
    uid = str(uuid.uuid4())
    body = {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": write.request(uid),
    }
    return uid, orjson.dumps(body)


def read_answer(uid: str, body: bytes) -> Json:
    """The `response` of the answer. Raises: BadAnswer where it is not ours or not v1."""
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
    """The refusal that the client sees."""
    status = response.get("status") or {}
    denied = f'admission webhook "{name}" denied the request'
    if text := status.get("message") or status.get("reason"):
        message = f"{denied}: {text}"
    else:
        message = f"{denied} without explanation"
    code = max(int(status.get("code") or 0), 400)
    return ApiError(code, status.get("reason", ""), message, status.get("details"))


def patched(response: Json, body: Json) -> Json:
    """The object after the webhook's patch. Raises: BadAnswer where the patch does not apply."""
    encoded = response.get("patch")
    if not encoded:
        return body
    try:
        operations = orjson.loads(base64.b64decode(encoded, validate=True))
        # The patch works in place; a failed one must not leave a half-changed object.
        return apply_json_patch(orjson.loads(orjson.dumps(body)), operations)
    except (binascii.Error, orjson.JSONDecodeError) as error:
        raise BadAnswer(f"the patch is no JSON patch: {error}") from error
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
