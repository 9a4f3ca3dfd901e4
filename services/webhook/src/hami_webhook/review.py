"""Read AdmissionReview requests, and write responses in the same version.

Input: the body of `POST /webhook`. Output: `AdmissionReview` values and answers as plain JSON. The
structs below are the review's schema: decoding checks their fields and ignores others.
`hamicommon.admission.mutation` decides the verdict; `service.py` calls both. Source:
admission.k8s.io/v1 (v1beta1 has the same fields).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import orjson
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import TRACEPARENT, annotations_of
from hamicommon.k8s.types import Json
from msgspec import Meta, Struct

ApiVersion = Literal["admission.k8s.io/v1", "admission.k8s.io/v1beta1"]
API_VERSIONS: tuple[ApiVersion, ...] = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")

Kind = Literal["Pod", "ResourceQuota"]
"""Kinds of objects that are judged."""
_REASONS = {400: "BadRequest", 403: "Forbidden", 422: "Invalid", 500: "InternalError"}


class MalformedReview(InvalidRequest):
    """Error: the body is no review; `uid` and `api_version` are its readable parts."""

    def __init__(self, message: str, *, uid: str = "", api_version: ApiVersion = API_VERSIONS[0]):
        super().__init__(message)
        self.uid = uid
        self.api_version = api_version


class AdmissionReview(NamedTuple):
    """Parts of an AdmissionReview request that are used."""

    api_version: ApiVersion
    uid: str
    operation: str
    namespace: str
    pod_name: str
    """Name of the pod, or the beginning of a generated name and a star."""
    username: str
    """User who creates the pod, or adds an ephemeral container."""
    groups: tuple[str, ...]
    """Groups of the user."""
    dry_run: bool
    stamp: str
    """Trace context on the pod; empty: none."""
    pod: Json
    """Object to judge: a Pod, or a ResourceQuota on its path."""
    subresource: str = ""
    """Subresource: `ephemeralcontainers`, or empty."""
    old_pod: Json | None = None
    """Pod before an update."""


class _User(Struct, rename="camel"):
    username: Any = None
    groups: Any = None


class _Request(Struct, rename="camel"):
    uid: Annotated[str, Meta(min_length=1)]
    operation: Annotated[str, Meta(min_length=1)]
    object: dict[str, Any]
    namespace: str | None = None
    name: str | None = None
    user_info: _User | None = None
    dry_run: Any = None
    sub_resource: str | None = None
    old_object: dict[str, Any] | None = None


class _Review(Struct, rename="camel"):
    """Message types; the first two fields are checked later, for better messages."""

    api_version: Any = None
    kind: Any = None
    request: _Request | None = None


_reviews = msgspec.json.Decoder(_Review)


def read_review(body: bytes, kind: Kind = "Pod") -> AdmissionReview:
    """Decode a review of a pod, of its ephemeral containers, or of a ResourceQuota.

    Raises: MalformedReview with one sentence: the found value and the expected one.
    """
    try:
        review = _reviews.decode(body)
    except msgspec.ValidationError as exc:
        raise _malformed_review(body, _sentence(exc)) from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise MalformedReview(f"the body is not JSON: {exc}") from exc
    if review.api_version not in API_VERSIONS:
        found = f"apiVersion is {review.api_version!r:.60}"
        raise _malformed_review(body, f"{found}: expected one of {', '.join(API_VERSIONS)}")
    if review.kind != "AdmissionReview":
        raise _malformed_review(body, f"kind is {review.kind!r:.60}: expected AdmissionReview")
    if review.request is None:
        raise _malformed_review(body, "request is missing: expected an object")
    return _of_request(review.api_version, review.request, kind)


def _of_request(api_version: ApiVersion, request: _Request, kind: Kind) -> AdmissionReview:
    pod = request.object
    problem = _other_object(pod, kind)
    if problem:
        raise MalformedReview(problem, uid=request.uid, api_version=api_version)
    metadata = pod.get("metadata") or {}
    names = (request.name, metadata.get("name"))
    prefix = metadata.get("generateName") or ""
    user = request.user_info or _User()
    return AdmissionReview(
        api_version=api_version,
        uid=request.uid,
        operation=request.operation,
        namespace=request.namespace or "",
        pod_name=next((str(name) for name in names if name), f"{prefix}*"),
        username=str(user.username or ""),
        groups=tuple(map(str, user.groups)) if isinstance(user.groups, list) else (),
        dry_run=bool(request.dry_run),
        stamp=str(annotations_of(pod).get(TRACEPARENT, "")),
        pod=pod,
        subresource=request.sub_resource or "",
        old_pod=request.old_object,
    )


def _malformed_review(body: bytes, problem: str) -> MalformedReview:
    """Return the error, with uid and version if they can be read."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        return MalformedReview(f"the body is not JSON: {exc}")
    if not isinstance(document, dict):
        return MalformedReview("the body is not a JSON object: expected an AdmissionReview")
    request, version = document.get("request"), document.get("apiVersion")
    uid = request.get("uid") if isinstance(request, dict) else None
    return MalformedReview(
        f"the AdmissionReview is malformed: {problem}",
        uid=uid if isinstance(uid, str) else "",
        api_version=API_VERSIONS[1] if version == API_VERSIONS[1] else API_VERSIONS[0],
    )


def _sentence(exc: msgspec.ValidationError) -> str:
    """Return `request.uid: expected str, got int` for a message of msgspec."""
    problem, _, path = str(exc).replace("`", "").partition(" - at $.")
    problem = problem[:1].lower() + problem[1:]
    return f"{path}: {problem}" if path else problem


def _other_object(obj: Json, wanted: Kind) -> str:
    """Return why the object is not of the wanted kind; empty if it is."""
    kind = obj.get("kind", wanted)
    if kind != wanted:
        plural = "pods" if wanted == "Pod" else "ResourceQuotas"
        return f"request.object is a {kind!s:.60}: this webhook is for {plural}"
    metadata = obj.get("metadata", {})
    for name, part in (
        ("metadata", metadata),
        ("spec", obj.get("spec")),
        ("metadata.annotations", _annotations(metadata)),
    ):
        if not isinstance(part, dict):
            return f"request.object.{name} is {_kind(part)}: expected an object"
    return ""


def _annotations(metadata: object) -> object:
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return {} if found is None else found


def _kind(value: object) -> str:
    return "absent" if value is None else type(value).__name__


def allowed_response(
    review: AdmissionReview,
    *,
    patch: Sequence[Json] = (),
    message: str = "",
    warnings: Sequence[str] = (),
    audit: Mapping[str, str] | None = None,
) -> Json:
    """Return a response that allows the object, changed by `patch` (RFC 6902)."""
    response: Json = {"uid": review.uid, "allowed": True}
    if message:
        response["status"] = {"code": 200, "message": message}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(orjson.dumps(patch)).decode()
    return _answer(review.api_version, response, warnings, audit)


def refused_response(
    uid: str,
    api_version: ApiVersion,
    *,
    code: int,
    message: str,
    warnings: Sequence[str] = (),
    audit: Mapping[str, str] | None = None,
) -> Json:
    """Return a response that refuses the object; the user reads `message`."""
    status: Json = {"code": code, "message": message}
    if code in _REASONS:
        status["reason"] = _REASONS[code]
    response: Json = {"uid": uid, "allowed": False, "status": status}
    return _answer(api_version, response, warnings, audit)


def _answer(
    api_version: ApiVersion,
    response: Json,
    warnings: Sequence[str],
    audit: Mapping[str, str] | None,
) -> Json:
    if warnings:
        response["warnings"] = list(warnings)
    if audit:
        response["auditAnnotations"] = dict(audit)
    return {"apiVersion": api_version, "kind": "AdmissionReview", "response": response}
