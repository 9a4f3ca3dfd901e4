"""Parse and apply the three types of patches."""

from __future__ import annotations

from typing import Any

import jsonpatch
import orjson
from hamicommon.k8s.types import Json

from kubelocal.apiserver.errors import ApiError, bad_request

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
ACCEPTED = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)

# Key of each list of objects that merges, by the list's field; others are replaced as a whole.
_MERGE_KEYS = {
    **dict.fromkeys(("containers", "initContainers", "ephemeralContainers", "env"), "name"),
    **dict.fromkeys(("volumes", "imagePullSecrets", "resourceClaims", "secrets"), "name"),
    **dict.fromkeys(("schedulingGates", "resourceClaimStatuses"), "name"),
    **dict.fromkeys(("webhooks", "matchConditions"), "name"),
    **dict.fromkeys(("hostAliases", "hostIPs", "podIPs"), "ip"),
    **dict.fromkeys(("conditions", "addresses"), "type"),
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "topologySpreadConstraints": "topologyKey",
    "ownerReferences": "uid",
}
_MERGED_SETS = ("finalizers", "podCIDRs")
_ORDER = "$setElementOrder/"
_DELETE_VALUES = "$deleteFromPrimitiveList/"


def read_patch(content_type: str, body: bytes) -> Any:
    """Parse a patch. Raises: ApiError 415 for an unknown type, 400 for malformed ones."""
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


def apply_patch(content_type: str, target: Json, patch: Any) -> Json:
    """Return a patched copy of `target`. Raises: ApiError if the patch can't be applied."""
    if content_type == JSON_PATCH:
        return apply_json_patch(target, patch)
    if content_type == MERGE_PATCH:
        merged: Json = merge_patch(target, patch)
        return merged
    return strategic_merge(target, patch)


def apply_json_patch(target: Json, operations: list[Any]) -> Json:
    """Apply a JSON patch (RFC 6902) in place. Raises: ApiError 422 if an operation fails."""
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
    """Return the error for a patch whose result is not an object of the resource."""
    message = f"Invalid value: {why}"
    cause = {"reason": "FieldValueInvalid", "message": message, "field": "patch"}
    return ApiError(422, "Invalid", f' "" is invalid: patch: {message}', {"causes": [cause]})


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386): null removes, objects merge, other values replace."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def strategic_merge(target: Json, patch: Json) -> Json:
    """Apply a strategic merge patch, which merges lists of named items by their keys.

    Directives: `$patch: replace|delete|merge`, `$retainKeys`, `$deleteFromPrimitiveList/<field>`,
    `$setElementOrder/<field>`. Source: apimachinery `util/strategicpatch`.

    Raises: ApiError where the patch is malformed or an element lacks its merge key.
    """
    directive = patch.get("$patch")
    if directive == "replace":
        replaced: Json = _without_directives(patch)
        return replaced
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"unknown patch directive $patch: {directive!r}")
    merged = dict(target)
    if (keep := patch.get("$retainKeys")) is not None:
        merged = {name: value for name, value in merged.items() if name in keep}
    for name, value in patch.items():
        if name.startswith(_DELETE_VALUES):
            target_name = name.removeprefix(_DELETE_VALUES)
            merged[target_name] = [v for v in merged.get(target_name, []) if v not in value]
        elif name.startswith("$"):
            continue
        elif value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge_field(name, merged.get(name), value)
    for name, order in patch.items():
        if name.startswith(_ORDER):
            field = name.removeprefix(_ORDER)
            if isinstance(values := merged.get(field), list):
                merged[field] = _in_order(
                    values, order, target.get(field) or [], _key_of(field, order)
                )
    return merged


def _merge_field(name: str, old: Any, new: Any) -> Any:
    if isinstance(new, dict):
        return strategic_merge(old if isinstance(old, dict) else {}, new)
    if isinstance(new, list) and (key := _key_of(name, new)):
        return _merge_list(key, old or [], new)
    if isinstance(new, list) and name in _MERGED_SETS:
        together = [*(old or []), *(value for value in new if value not in (old or []))]
        return _in_order(together, new, old or [], None)
    return new


def _key_of(field: str, items: list[Any]) -> str | None:
    """Return the key that identifies items of a list; None for a list that is replaced."""
    if field == "ports":  # of a container, or of a Service
        of_container = any(isinstance(item, dict) and "containerPort" in item for item in items)
        return "containerPort" if of_container else "port"
    return _MERGE_KEYS.get(field)


def _merge_list(key: str, old: list[Any], new: list[Any]) -> list[Any]:
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in new):
        return [_without_directives(item) for item in new if item.get("$patch") != "replace"]
    merged = list(old)
    for item in new:
        if not isinstance(item, dict):
            raise bad_request(f"expected an object in a list merged by {key}, found {item!r}")
        if key not in item:
            raise ApiError(
                500, "", f"map: {_go_map(item)} does not contain declared merge key: {key}"
            )
        index = next((i for i, have in enumerate(merged) if have.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            merged = [have for have in merged if have.get(key) != item[key]]
        elif index is None:
            merged.append(strategic_merge({}, item))
        else:
            merged[index] = strategic_merge(merged[index], item)
    named = [item for item in new if item.get("$patch") != "delete"]
    return _in_order(merged, named, old, key)


def _in_order(merged: list[Any], patch: list[Any], live: list[Any], key: str | None) -> list[Any]:
    """Return the items in the order in which the patch names them.

    The others before the first named one that they precede in the live object, otherwise at the
    end.
    """

    def name_of(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    named, was = [name_of(item) for item in patch], [name_of(item) for item in live]
    left = [item for item in merged if name_of(item) not in named]
    left.sort(key=lambda item: was.index(name_of(item)) if name_of(item) in was else len(was))
    right = [item for item in merged if name_of(item) in named]
    right.sort(key=lambda item: named.index(name_of(item)))
    ordered: list[Any] = []
    while left and right:
        ours, theirs = name_of(left[0]), name_of(right[0])
        both = ours in was and theirs in was
        first = left if both and was.index(ours) < was.index(theirs) else right
        ordered.append(first.pop(0))
    return ordered + left + right


def _without_directives(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without_directives(item)
            for name, item in value.items()
            if not name.startswith("$") and item is not None
        }
    if isinstance(value, list):
        return [_without_directives(item) for item in value]
    return value


def _go_map(item: Json) -> str:
    return "map[" + " ".join(f"{name}:{value}" for name, value in sorted(item.items())) + "]"
