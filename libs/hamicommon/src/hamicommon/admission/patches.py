"""The smallest JSON patch (RFC 6902) that turns one JSON document into another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Operation = dict[str, Any]
"""One step: op, path, and value unless op is remove."""


def diff(before: Any, after: Any, path: str = "") -> list[Operation]:
    """Operations that turn `before` into `after`, in the order of their keys.

    Lists are compared place by place, so an entry that was appended is one `add`.
    """
    return list(_steps(before, after, path))


def _steps(before: Any, after: Any, path: str) -> Iterator[Operation]:
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _object_steps(before, after, path)
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for index, old in enumerate(before):
            yield from _steps(old, after[index], f"{path}/{index}")
        for new in after[len(before) :]:
            yield {"op": "add", "path": f"{path}/-", "value": new}
    elif type(before) is not type(after) or before != after:
        yield {"op": "replace", "path": path, "value": after}


def _object_steps(before: dict[str, Any], after: dict[str, Any], path: str) -> Iterator[Operation]:
    for key in before:
        if key not in after:
            yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
    for key, new in after.items():
        where = f"{path}/{_escaped(key)}"
        if key not in before:
            yield {"op": "add", "path": where, "value": new}
        else:
            yield from _steps(before[key], new, where)


def _escaped(key: str) -> str:
    """A key as RFC 6901 writes it in a pointer."""
    return key.replace("~", "~0").replace("/", "~1")
