"""The three patch types by their content type: which one, and how it fails."""

from __future__ import annotations

from typing import Any

import jsonpatch
import orjson
from hamicommon.k8s.types import Json

from kubelocal.apiserver.errors import ApiError, bad_request
from kubelocal.apiserver.kinds.strategic_merge import merge_patch, strategic_merge

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
ACCEPTED = [JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH]


def read_patch(content_type: str, body: bytes) -> Any:
    """The decoded patch. Raises: ApiError 415 for another type, 400 for what is no patch."""
    if content_type not in ACCEPTED:
        raise ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    try:
        patch = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"invalid character in the patch: {error}") from error
    if content_type == JSON_PATCH and not isinstance(patch, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    if content_type != JSON_PATCH and not isinstance(patch, dict):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal array into Go value of type "
            "map[string]interface {}"
        )
    return patch


def apply_patch(content_type: str, definition: str, target: Json, patch: Any) -> Json:
    """A new object: `target` with the patch applied. Raises: ApiError where it cannot be."""
    if content_type == JSON_PATCH:
        return apply_json_patch(target, patch)
    if content_type == MERGE_PATCH:
        merged: Json = merge_patch(target, patch)
        return merged
    return strategic_merge(definition, target, patch)


def apply_json_patch(target: Json, operations: list[Any]) -> Json:
    """RFC 6902, in place. Raises: ApiError 422, as the real server, where a step does not apply."""
    try:
        patched: Json = jsonpatch.apply_patch(target, operations, in_place=True)
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
        raise ApiError(
            422,
            "Invalid",
            "the server rejected our request due to an error in our request",
            {"causes": [{"message": str(error)}]},
        ) from error
    if not isinstance(patched, dict):
        raise bad_request("a patch must leave an object")
    return patched


def not_an_object(why: str) -> ApiError:
    """The patch leaves something that is not an object of the resource."""
    message = f"Invalid value: {why}"
    cause = {"reason": "FieldValueInvalid", "message": message, "field": "patch"}
    return ApiError(422, "Invalid", f' "" is invalid: patch: {message}', {"causes": [cause]})
