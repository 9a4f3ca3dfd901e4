"""AdmissionReview as it travels: what the API server asks, and the answer in the same version.

In: the body of `POST /webhook`. Out: `AdmissionReview` values and answers as plain JSON. What a
verdict says is decided in `hamicommon.admission.mutation`; `service.py` brings both together.
`quick_reading.py` reads what API servers send, here is read whole what it does not know.
Source: admission.k8s.io/v1 (v1beta1 has the same fields).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import orjson
from hamicommon.admission.cache import OfObject, Relevant
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import TRACEPARENT, annotations_of
from hamicommon.k8s.types import Json

ApiVersion = Literal["admission.k8s.io/v1", "admission.k8s.io/v1beta1"]
API_VERSIONS: tuple[ApiVersion, ...] = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")

_REASONS = {400: "BadRequest", 403: "Forbidden", 422: "Invalid", 500: "InternalError"}


class MalformedReview(InvalidRequest):
    """The body is no review; `uid` and `api_version` are what could be read of it nevertheless."""

    def __init__(self, message: str, *, uid: str = "", api_version: ApiVersion = API_VERSIONS[0]):
        super().__init__(message)
        self.uid = uid
        self.api_version = api_version


class AdmissionReview(NamedTuple):
    """One question of the API server: the part of it that matters here."""

    api_version: ApiVersion
    uid: str
    operation: str
    namespace: str
    pod_name: str
    """Or what it will start with, and a star."""
    username: str
    """Who creates the pod."""
    dry_run: bool
    stamp: str
    """The trace that the pod brings along; empty: none."""
    pod: Relevant


def name_of(*names: object, prefix: object) -> str:
    """The pod's name, the first that there is, or what its name will start with."""
    return next((str(name) for name in names if name), f"{prefix or ''}*")


def read_review(body: bytes) -> AdmissionReview:
    """Decodes a review of a pod's creation.

    Raises: MalformedReview with one sentence: what was found and what would be right.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise MalformedReview(f"the body is no JSON: {exc}") from exc
    if not isinstance(document, dict):
        raise MalformedReview("the body is no JSON object: an AdmissionReview is wanted")
    request = document.get("request")
    uid = request.get("uid") if isinstance(request, dict) else None
    version = document.get("apiVersion")
    known = API_VERSIONS[1] if version == API_VERSIONS[1] else API_VERSIONS[0]
    problem = _no_review(document) or _no_request(request)
    if problem or not isinstance(request, dict):
        raise MalformedReview(
            f"the AdmissionReview is malformed: {problem}",
            uid=uid if isinstance(uid, str) else "",
            api_version=known,
        )
    pod = request["object"]
    problem = _no_pod(pod)
    if problem:
        raise MalformedReview(problem, uid=request["uid"], api_version=known)
    user, metadata = request.get("userInfo") or {}, pod.get("metadata") or {}
    return AdmissionReview(
        api_version=known,
        uid=request["uid"],
        operation=request["operation"],
        namespace=request.get("namespace") or "",
        pod_name=name_of(
            request.get("name"), metadata.get("name"), prefix=metadata.get("generateName")
        ),
        username=str(user.get("username") or ""),
        dry_run=bool(request.get("dryRun")),
        stamp=str(annotations_of(pod).get(TRACEPARENT, "")),
        pod=OfObject(pod),
    )


def _no_review(document: Json) -> str:
    """Why the document is no AdmissionReview; empty when it is one."""
    if document.get("apiVersion") not in API_VERSIONS:
        found = document.get("apiVersion")
        return f"apiVersion is {found!r:.60}: one of {', '.join(API_VERSIONS)} is wanted"
    if document.get("kind") != "AdmissionReview":
        return f"kind is {document.get('kind')!r:.60}: AdmissionReview is wanted"
    return ""


def _no_request(request: object) -> str:
    """Why the request can't be answered; empty when it can."""
    if not isinstance(request, dict):
        return f"request is {_kind(request)}: an object is wanted"
    for field, wanted in (
        ("uid", True),
        ("operation", True),
        ("namespace", False),
        ("name", False),
    ):
        value = request.get(field)
        if value is None and not wanted:
            continue
        if not isinstance(value, str) or (wanted and not value):
            return f"request.{field} is {value!r:.60}: a text is wanted"
    for field, wanted in (("object", True), ("userInfo", False)):
        value = request.get(field)
        if not isinstance(value, dict) and (wanted or value is not None):
            return f"request.{field} is {_kind(value)}: an object is wanted"
    return ""


def _no_pod(obj: Json) -> str:
    """Why the object is no pod that can be judged; empty when it is one."""
    kind = obj.get("kind", "Pod")
    if kind != "Pod":
        return f"request.object is a {kind!s:.60}: this webhook is for pods"
    metadata = obj.get("metadata", {})
    for name, part in (
        ("metadata", metadata),
        ("spec", obj.get("spec")),
        ("metadata.annotations", _annotations(metadata)),
    ):
        if not isinstance(part, dict):
            return f"request.object.{name} is {_kind(part)}: an object is wanted"
    return ""


def _annotations(metadata: object) -> object:
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return {} if found is None else found


def _kind(value: object) -> str:
    return "absent" if value is None else type(value).__name__


def allowed(
    review: AdmissionReview,
    *,
    patch: Sequence[Json] = (),
    message: str = "",
    warnings: Sequence[str] = (),
    audit: Mapping[str, str] | None = None,
) -> Json:
    """The pod may be created, changed by `patch` (RFC 6902; empty: as it is)."""
    response: Json = {"uid": review.uid, "allowed": True}
    if message:
        response["status"] = {"code": 200, "message": message}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(orjson.dumps(patch)).decode()
    return _answer(review.api_version, response, warnings, audit)


def refused(
    uid: str,
    api_version: ApiVersion,
    *,
    code: int,
    message: str,
    warnings: Sequence[str] = (),
    audit: Mapping[str, str] | None = None,
) -> Json:
    """The pod may not be created; `message` is what the user reads."""
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
