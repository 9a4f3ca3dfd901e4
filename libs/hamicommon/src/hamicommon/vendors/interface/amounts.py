"""Parse the amount of one extended resource of a container; errors are one sentence each."""

from __future__ import annotations

from typing import Any

from hamicommon.clipping import clip
from hamicommon.device_config import INT32_MAX
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.quantities import is_zero, parse_ceil, parse_int
from hamicommon.k8s.types import Json

_SHOWN = 100
"""Maximum characters of an amount in a message, as many as a quantity may have."""


def find(container: Json, resource: str, *, limits_only: bool = False) -> Any | None:
    """Return the amount as written in limits, otherwise in requests; None if in neither."""
    resources = container.get("resources")
    if not resource or not resources:
        return None
    limits = resources.get("limits")
    amount = limits.get(resource) if limits else None
    if amount is not None or limits_only:
        return amount
    requests = resources.get("requests")
    return requests.get(resource) if requests else None


def asks(container: Json, resource: str, *, limits_only: bool = False) -> bool:
    """Return whether the container requests the resource; an amount of 0 is no request."""
    amount = find(container, resource, limits_only=limits_only)
    return amount is not None and not is_zero(amount)


def count(container: Json, resource: str, *, limits_only: bool = False) -> int | None:
    """Return the requested number of cards; None if not given.

    Raises: InvalidRequest naming container, resource, value and what would be right.
    """
    wanted = "a whole number of cards, for example 1"
    return whole(container, resource, top=INT32_MAX, wanted=wanted, limits_only=limits_only)


def memory(container: Json, resource: str, *, factor: int = 1, limits_only: bool = False) -> int:
    """Return the requested MiB per card; 0 if not given. `factor`: MiB per unit.

    Raises: InvalidRequest naming container, resource, value and what would be right.
    """
    factor = max(factor, 1)
    top = INT32_MAX // factor
    wanted = f"a whole number of MiB up to {top}, for example 16384"
    if factor > 1:
        wanted = f"a whole number of units of {factor} MiB up to {top}, for example 4"
    units = whole(container, resource, top=top, wanted=wanted, limits_only=limits_only)
    return (units or 0) * factor


def cores(container: Json, resource: str, *, default: int, limits_only: bool = False) -> int:
    """Return the requested percent of each card's cores; above 100 is allowed and counts as 100.

    Raises: InvalidRequest naming container, resource, value and what would be right.
    """
    wanted = "a whole number from 0 to 100, the share of a card's cores"
    value = whole(container, resource, top=INT32_MAX, wanted=wanted, limits_only=limits_only)
    return default if value is None else value


def whole(
    container: Json,
    resource: str,
    *,
    top: int,
    wanted: str,
    low: int = 0,
    limits_only: bool = False,
) -> int | None:
    """Return the amount as a whole number from `low` to `top`; None if not given.

    `wanted` describes what would be right, such as `a whole number of MiB, for example 16384`.

    Raises: InvalidRequest naming container, resource, value and what would be right.
    """
    amount = find(container, resource, limits_only=limits_only)
    if amount is None:
        return None
    try:
        value = 0 if is_zero(amount) else parse_int(amount)
        if value is not None and low <= value <= top:
            return value
        nearly = parse_ceil(amount)
    except InvalidRequest as exc:
        where = _where(container, resource, amount)
        raise InvalidRequest(f"{where}, which is not a quantity: expected {wanted}") from exc
    where = _where(container, resource, amount)
    raise InvalidRequest(f"{where}: expected {wanted}{_hint(amount, nearly, top)}")


def _where(container: Json, resource: str, amount: object) -> str:
    name = clip(str(container.get("name", "")))
    return f"container '{name}': {resource} is {clip(str(amount), _SHOWN)}"


def _hint(amount: object, nearly: int, top: int) -> str:
    """Return the amount that was probably meant, if memory was written in bytes."""
    mib = nearly // 2**20
    if str(amount).endswith("i") and 0 < mib <= top and nearly > top:
        return f" (the unit is MiB: write {mib})"
    return ""


def write(container: Json, given: Json) -> None:
    """Write amounts to the container's limits and requests alike."""
    resources = container["resources"]
    for part in ("limits", "requests"):
        resources[part] = (resources.get(part) or {}) | given
