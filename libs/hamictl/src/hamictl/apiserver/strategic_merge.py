"""Strategic merge patch: JSON merge patch that knows which lists are sets of named things.

In: the object and the patch as decoded JSON, and the schema definition of the object. Out: a new
object. Directives understood: `$patch: replace|delete|merge`, `$retainKeys`,
`$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>`.
Source: apimachinery `util/strategicpatch`, and the merge keys in `merge_keys`.
"""

from __future__ import annotations

from typing import Any

from hamictl.apiserver import merge_keys, schema
from hamictl.apiserver.errors import ApiError, Json, bad_request

_ORDER = "$setElementOrder/"
_DELETE_VALUES = "$deleteFromPrimitiveList/"


def merge_patch(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386): null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def strategic_merge(definition: str, target: Json, patch: Json) -> Json:
    """Apply `patch` to an object of `definition`.

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
            merged[name] = _merge_field(definition, name, merged.get(name), value)
    for name, order in patch.items():
        if name.startswith(_ORDER):
            _reorder(merged, definition, name.removeprefix(_ORDER), order)
    return merged


def _merge_field(definition: str, name: str, old: Any, new: Any) -> Any:
    kind = schema.field_type(definition, name)
    if isinstance(new, dict):
        inner = kind if kind[:1].isupper() else ""
        return strategic_merge(inner, old if isinstance(old, dict) else {}, new)
    if isinstance(new, list) and (key := merge_keys.MERGE_KEYS.get((definition, name))):
        return _merge_list(kind.removeprefix("[]"), key, old or [], new)
    if isinstance(new, list) and (definition, name) in merge_keys.MERGED_SETS:
        return [*(old or []), *(value for value in new if value not in (old or []))]
    return new


def _merge_list(element: str, key: str, old: list[Any], new: list[Any]) -> list[Any]:
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
            merged.append(strategic_merge(element, {}, item))
        else:
            merged[index] = strategic_merge(element, merged[index], item)
    return merged


def _reorder(merged: Json, definition: str, name: str, order: list[Any]) -> None:
    """Put the listed elements in the asked order; others follow in the order that they had."""
    values = merged.get(name)
    if not isinstance(values, list):
        return
    key = merge_keys.MERGE_KEYS.get((definition, name))
    wanted = [each.get(key) if key else each for each in order]

    def place(indexed: tuple[int, Any]) -> tuple[int, int]:
        index, item = indexed
        identity = item.get(key) if key else item
        return (wanted.index(identity), 0) if identity in wanted else (len(wanted), index)

    merged[name] = [item for _, item in sorted(enumerate(values), key=place)]


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
