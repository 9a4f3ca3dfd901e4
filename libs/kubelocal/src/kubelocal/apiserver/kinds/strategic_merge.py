"""Strategic merge patch: JSON merge patch that knows which lists are sets of named things.

In: the object and the patch as decoded JSON, and the schema definition of the object. Out: a new
object. Directives understood: `$patch: replace|delete|merge`, `$retainKeys`,
`$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>`.
Source: apimachinery `util/strategicpatch`, and the merge keys in `merge_keys`.
"""

from __future__ import annotations

from typing import Any

from hamicommon.k8s.types import Json

from kubelocal.apiserver.errors import ApiError, bad_request
from kubelocal.apiserver.schema import fields, merge_keys

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
            field = name.removeprefix(_ORDER)
            if isinstance(values := merged.get(field), list):
                key = merge_keys.MERGE_KEYS.get((definition, field))
                merged[field] = _in_order(values, order, target.get(field) or [], key)
    return merged


def _merge_field(definition: str, name: str, old: Any, new: Any) -> Any:
    kind = fields.field_type(definition, name)
    if isinstance(new, dict):
        inner = kind if kind[:1].isupper() else ""
        return strategic_merge(inner, old if isinstance(old, dict) else {}, new)
    if isinstance(new, list) and (key := merge_keys.MERGE_KEYS.get((definition, name))):
        return _merge_list(kind.removeprefix("[]"), key, old or [], new)
    if isinstance(new, list) and (definition, name) in merge_keys.MERGED_SETS:
        together = [*(old or []), *(value for value in new if value not in (old or []))]
        return _in_order(together, new, old or [], None)
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
    named = [item for item in new if item.get("$patch") != "delete"]
    return _in_order(merged, named, old, key)


def _in_order(merged: list[Any], patch: list[Any], live: list[Any], key: str | None) -> list[Any]:
    """Elements that the patch names in its order; the others before the first named one that
    they precede in the live object, else at the end."""

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
