"""Make the smallest JSON patch (RFC 6902) that turns one JSON document into another."""

from __future__ import annotations

from typing import Any

Operation = dict[str, Any]
"""One operation of a patch: op, path, and a value unless op is `remove`."""


def diff(before: Any, after: Any, path: str = "") -> list[Operation]:
    """Return the operations that turn `before` into `after`, in the order of their keys.

    Lists are compared place by place, so an entry that was appended is one `add`.
    """
    found: list[Operation] = []
    _compare(before, after, path, found)
    return found


def _compare(before: Any, after: Any, path: str, found: list[Operation]) -> None:
    """Append the operations for this part to `found`; equal objects are skipped."""
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        _compare_objects(before, after, path, found)
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for index, old in enumerate(before):
            if old is not after[index]:
                _compare(old, after[index], f"{path}/{index}", found)
        for new in after[len(before) :]:
            found.append({"op": "add", "path": f"{path}/-", "value": new})
    elif type(before) is not type(after) or before != after:
        found.append({"op": "replace", "path": path, "value": after})


def _compare_objects(
    before: dict[str, Any], after: dict[str, Any], path: str, found: list[Operation]
) -> None:
    for key in [key for key in before if key not in after]:
        found.append({"op": "remove", "path": f"{path}/{_escape(key)}"})
    for key, new in after.items():
        if key not in before:
            found.append({"op": "add", "path": f"{path}/{_escape(key)}", "value": new})
        elif before[key] is not new:
            _compare(before[key], new, f"{path}/{_escape(key)}", found)


def _escape(key: str) -> str:
    """Escape a key for a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
