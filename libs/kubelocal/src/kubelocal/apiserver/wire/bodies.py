"""Convert request bodies into stored form.

JSON, YAML and protobuf are read; what the schema does not know is dropped, with a warning or an
error as the `fieldValidation` parameter asks.
"""

from __future__ import annotations

from typing import Any

import orjson
import yaml
from hamicommon.k8s.types import Json

from kubelocal.apiserver.calls import ApiTarget, Caller
from kubelocal.apiserver.errors import ApiError, bad_request, unsupported_media_type
from kubelocal.apiserver.kinds.defaults import apply_defaults
from kubelocal.apiserver.kinds.patch import not_an_object
from kubelocal.apiserver.schema import fields
from kubelocal.apiserver.schema.resources import VERSION, Resource
from kubelocal.apiserver.wire import protobuf

_JSON = "application/json"
_YAML = "application/yaml"
ACCEPTED = [_JSON, _YAML, protobuf.MEDIA_TYPE]


def decode(content_type: str, body: bytes, kind: str) -> Json:
    """Decode the JSON or YAML object in a body. Raises: ApiError 400 or 415."""
    media = content_type.partition(";")[0].strip() or _JSON
    if media not in ACCEPTED:
        raise unsupported_media_type(ACCEPTED)
    if media == protobuf.MEDIA_TYPE:
        try:
            return protobuf.decode(body)
        except (protobuf.Malformed, UnicodeDecodeError) as error:
            raise bad_request(f"the object provided is unrecognized: {error}") from error
    try:
        value: Any = orjson.loads(body) if media == _JSON else yaml.safe_load(body)
    except (orjson.JSONDecodeError, yaml.YAMLError) as error:
        shown = body[:100].decode(errors="replace") or "<empty>"
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind}): couldn't get "
            f"version/kind; json parse error: {error} ({shown})"
        ) from error
    if not isinstance(value, dict):
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind}): expected an object"
        )
    return value


def read_object(target: ApiTarget, caller: Caller, body: Json) -> Json:
    """Return a body as an object for this path, without unknown fields, before defaulting.

    Raises: ApiError 400 where it is of another kind, namespace or name, or has wrong types.
    """
    resource = target.resource
    check_kind(resource, body)
    cleaned = clean(resource, caller, body)
    meta = cleaned.setdefault("metadata", {})
    if resource.namespaced:
        if meta.setdefault("namespace", target.namespace) != target.namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the "
                "request"
            )
    elif meta.pop("namespace", ""):
        raise bad_request("namespace may not be set on a cluster-scoped object")
    return cleaned


def check_kind(resource: Resource, body: Json) -> None:
    """Check the body's kind. Raises: ApiError 400 if it is another one."""
    kind = body.get("kind") or resource.kind
    version = body.get("apiVersion") or resource.api_version
    if version != resource.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({resource.api_version})"
        )
    if kind != resource.kind:
        raise bad_request(
            f'{kind} in version "{VERSION}" cannot be handled as a {resource.kind}: '
            f"converting (v1.{kind}) to (core.{resource.kind}): unknown conversion"
        )


def clean(resource: Resource, caller: Caller, body: Json, *, is_patched: bool = False) -> Json:
    """Return the body without unknown fields, in stored form.

    Raises: ApiError 400, for patches 422.
    """
    cannot = f'{resource.kind} in version "{VERSION}" cannot be handled as a '
    try:
        cleaned, unknown = fields.clean(resource.schema, body)
    except fields.Unreadable as error:
        if is_patched:
            raise not_an_object(str(error)) from error
        raise bad_request(f"{cannot}{resource.kind}: {error}") from error
    if unknown and caller.field_validation == "Strict":
        listed = ", ".join(f'unknown field "{path}"' for path in unknown)
        raise bad_request(f"{cannot}{resource.kind}: strict decoding error: {listed}")
    if unknown and caller.field_validation == "Warn":
        caller.warnings.extend(f'unknown field "{path}"' for path in unknown)
    cleaned.pop("kind", None)
    cleaned.pop("apiVersion", None)
    return cleaned


def finish(target: ApiTarget, caller: Caller, body: Json) -> Json:
    """Clean and default an object again after a webhook changed it; the next one needs its kind."""
    resource = target.resource
    quiet = Caller(user=caller.user, dry_run=caller.dry_run, field_validation="Ignore")
    stored = clean(resource, quiet, body)
    apply_defaults(resource, stored)
    return for_webhook(resource, stored)


def for_webhook(resource: Resource, stored: Json) -> Json:
    """Convert a stored body to the form for webhooks."""
    head = {"kind": resource.kind, "apiVersion": resource.api_version}
    return head | stored


def from_webhook(body: Json) -> Json:
    """Convert a body from webhooks to the stored form."""
    return {name: value for name, value in body.items() if name not in ("kind", "apiVersion")}


def check_dry_run(values: list[str], kind: str) -> bool:
    """Return whether `dryRun` is set. Raises: ApiError 422 for another value than All."""
    if wrong := [value for value in values if value != "All"]:
        listed = ", ".join(f'"{value}"' for value in wrong)
        raise ApiError(
            422,
            "Invalid",
            f'{kind}.meta.k8s.io "" is invalid: dryRun: Unsupported value: []string{{{listed}}}: '
            'supported values: "All"',
            {"group": "meta.k8s.io", "kind": kind},
        )
    return bool(values)
