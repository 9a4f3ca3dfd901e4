"""AdmissionReview as it travels: what the API server asks, and the answer in the same version.

In: the body of `POST /webhook`. Out: `AdmissionReview` values and answers as plain JSON. What a
verdict says is decided in `hamicommon.admission.mutation`; `service.py` brings both together.
Source: admission.k8s.io/v1 (v1beta1 has the same fields).
"""

from __future__ import annotations

import base64
from typing import Any, Literal

import orjson
from hamicommon.errors import InvalidRequest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

Json = dict[str, Any]
ApiVersion = Literal["admission.k8s.io/v1", "admission.k8s.io/v1beta1"]
API_VERSIONS: tuple[ApiVersion, ...] = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")

_REASONS = {400: "BadRequest", 403: "Forbidden", 500: "InternalError"}


class MalformedReview(InvalidRequest):
    """The body is no review; `uid` and `api_version` are what could be read of it nevertheless."""

    def __init__(self, message: str, *, uid: str = "", api_version: ApiVersion = API_VERSIONS[0]):
        super().__init__(message)
        self.uid = uid
        self.api_version = api_version


class UserInfo(BaseModel):
    """Who creates the pod."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    username: str = ""


class AdmissionRequest(BaseModel):
    """The part of a request that matters here."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    uid: str = Field(min_length=1)
    operation: str
    namespace: str = ""
    name: str = ""
    dry_run: bool = Field(default=False, alias="dryRun")
    user: UserInfo = Field(default_factory=UserInfo, alias="userInfo")
    object: Json

    @property
    def pod_name(self) -> str:
        """The pod's name, or what its name will start with."""
        metadata = self.object.get("metadata") or {}
        return self.name or metadata.get("name") or f"{metadata.get('generateName', '')}*"


class AdmissionReview(BaseModel):
    """One question of the API server."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    api_version: ApiVersion = Field(alias="apiVersion")
    kind: Literal["AdmissionReview"]
    request: AdmissionRequest


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
    known: ApiVersion = (
        "admission.k8s.io/v1beta1"
        if document.get("apiVersion") == "admission.k8s.io/v1beta1"
        else "admission.k8s.io/v1"
    )
    uid = uid if isinstance(uid, str) else ""
    try:
        review = AdmissionReview.model_validate(document)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        message = f"the AdmissionReview is malformed: {field}: {first['msg']}"
        raise MalformedReview(message, uid=uid, api_version=known) from exc
    problem = _no_pod(review.request.object)
    if problem:
        raise MalformedReview(problem, uid=uid, api_version=known)
    return review


def _no_pod(obj: Json) -> str:
    """Why the object is no pod that can be judged; empty when it is one."""
    kind = obj.get("kind", "Pod")
    if kind != "Pod":
        return f"request.object is a {kind}: this webhook is for pods"
    metadata = obj.get("metadata", {})
    for name, part in (
        ("metadata", metadata),
        ("spec", obj.get("spec")),
        ("metadata.annotations", _annotations(metadata)),
    ):
        if not isinstance(part, dict):
            return f"request.object.{name} is {type(part).__name__}: an object is wanted"
    return ""


def _annotations(metadata: object) -> object:
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return {} if found is None else found


def allowed(
    review: AdmissionReview,
    *,
    patch: list[Json],
    message: str = "",
    warnings: tuple[str, ...] = (),
) -> Json:
    """The pod may be created, changed by `patch` (RFC 6902; empty: as it is)."""
    response: Json = {"uid": review.request.uid, "allowed": True}
    if message:
        response["status"] = {"code": 200, "message": message}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(orjson.dumps(patch)).decode()
    if warnings:
        response["warnings"] = list(warnings)
    return _answer(review.api_version, response)


def refused(
    uid: str,
    api_version: ApiVersion,
    *,
    code: int,
    message: str,
    warnings: tuple[str, ...] = (),
) -> Json:
    """The pod may not be created; `message` is what the user reads."""
    status: Json = {"code": code, "message": message}
    if code in _REASONS:
        status["reason"] = _REASONS[code]
    response: Json = {"uid": uid, "allowed": False, "status": status}
    if warnings:
        response["warnings"] = list(warnings)
    return _answer(api_version, response)


def _answer(api_version: ApiVersion, response: Json) -> Json:
    return {"apiVersion": api_version, "kind": "AdmissionReview", "response": response}
