"""Resource amounts of a container, read the slow way (protocol 1.0.3)."""

import re

from hamicommon.k8s.types import Json

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

LARGEST = 2**31 - 1


class Malformed(Exception):
    """The pod asks for something that is no amount of that resource."""


def read_written(container: Json, name: str, *, limits_only: bool = False) -> object:
    """The amount as written: limits first, then requests; None when it is in neither."""
    resources = container.get("resources") or {}
    for part in ["limits"] if limits_only else ["limits", "requests"]:
        if (resources.get(part) or {}).get(name) is not None:
            return resources[part][name]
    return None


def whole(container: Json, name: str, *, limits_only: bool = False) -> int | None:
    """The amount as an integer; None if it is not given.

    Raises: Malformed if it is not an integer. (HAMi drops such a request silently, TRAP-23.)
    """
    amount = read_written(container, name, limits_only=limits_only)
    if amount is None:
        return None
    match = re.fullmatch(r"([+-]?[0-9]+)([a-zA-Z]*)", str(amount))
    if match is None or match[2] not in _UNITS:
        raise Malformed(f"{name}: {amount}")
    return int(match[1]) * _UNITS[match[2]]


def within(value: int | None, lowest: int, highest: int = LARGEST) -> int | None:
    """The value, if it is in the range. Raises: Malformed."""
    if value is not None and not lowest <= value <= highest:
        raise Malformed(f"{value} is not from {lowest} to {highest}")
    return value
