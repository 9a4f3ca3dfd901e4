"""Errors of the Kubernetes API, with code, reason and details of the `Status` object.

The texts follow apimachinery's `api/errors` package, because clients and people match on them.
`responses` turns an `ApiError` into the HTTP answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from hamicommon.errors import HamiError
from hamicommon.k8s.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Violated rule of an object: `field`, kind of rule, and message."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class ApiError(HamiError):
    """Refusal that is answered with a `Status` of kind Failure."""

    def __init__(self, code: int, reason: str, message: str, details: Json | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details

    def status(self) -> Json:
        """Return the `Status` object of this error."""
        body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "code": self.code,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details:
            body["details"] = self.details
        return body


def qualified_name(plural: str, group: str) -> str:
    """Return `pods` or `deployments.apps`, as messages name a resource."""
    return f"{plural}.{group}" if group else plural


def _details(name: str, group: str, plural: str) -> Json:
    details: Json = {"name": name} if name else {}
    if group:
        details["group"] = group
    return details | {"kind": plural}


def not_found(plural: str, group: str, name: str) -> ApiError:
    """Return error 404: the object does not exist."""
    text = f'{qualified_name(plural, group)} "{name}" not found'
    return ApiError(404, "NotFound", text, _details(name, group, plural))


def already_exists(plural: str, group: str, name: str) -> ApiError:
    """Return error 409: an object of that name exists."""
    text = f'{qualified_name(plural, group)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", text, _details(name, group, plural))


def conflict(plural: str, group: str, name: str, why: str) -> ApiError:
    """Return error 409: the object has changed, or forbids the change."""
    text = f'Operation cannot be fulfilled on {qualified_name(plural, group)} "{name}": {why}'
    return ApiError(409, "Conflict", text, _details(name, group, plural))


def stale(plural: str, group: str, name: str) -> ApiError:
    """Return error 409: the writer's resourceVersion is outdated."""
    return conflict(
        plural,
        group,
        name,
        "the object has been modified; please apply your changes to the latest version and "
        "try again",
    )


def forbidden(plural: str, group: str, name: str, why: str) -> ApiError:
    """Return error 403: the call is forbidden."""
    text = f'{qualified_name(plural, group)} "{name}" is forbidden: {why}'
    return ApiError(403, "Forbidden", text, _details(name, group, plural))


def bad_request(message: str) -> ApiError:
    """Return error 400: the request is invalid."""
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    """Return error 401: the user is unknown."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def no_such_path() -> ApiError:
    """Return error 404: no resource has the path."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def method_not_allowed() -> ApiError:
    """Return error 405: the resource lacks this method."""
    return ApiError(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
        {},
    )


def unsupported_media_type(accepted: list[str]) -> ApiError:
    """Return error 415: the body's content type is not accepted."""
    text = (
        "the body of the request was in an unknown format - accepted media types include: "
        + ", ".join(accepted)
    )
    return ApiError(415, "UnsupportedMediaType", text, {})


def expired(asked: int, oldest: int) -> ApiError:
    """Return error 410: changes before `oldest` are gone, so that the client lists again."""
    return ApiError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def internal(message: str) -> ApiError:
    """Return error 500: the server failed."""
    return ApiError(
        500,
        "InternalError",
        f"Internal error occurred: {message}",
        {"causes": [{"message": message}]},
    )


def invalid(kind: str, group: str, name: str, causes: list[Cause]) -> ApiError:
    """Return error 422: the object violates the rules in `causes` (not empty)."""
    texts = [str(cause) for cause in causes]
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    text = f'{kind}.{group} "{name}" is invalid: ' if group else f'{kind} "{name}" is invalid: '
    details = _details(name, group, kind)
    details["causes"] = [
        {"reason": cause.reason, "message": cause.message, "field": cause.field} for cause in causes
    ]
    return ApiError(422, "Invalid", text + joined, details)
