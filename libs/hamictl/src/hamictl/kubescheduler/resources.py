"""Amounts of resources as integers: cpu in thousandths, everything else in whole units. Pure."""

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

CPU = "cpu"
MEMORY = "memory"
PODS = "pods"

_QUANTITY = re.compile(r"([+-]?\d*\.?\d*)([numkMGTPE]?|[KMGTPE]i|[eE][+-]?\d+)")
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


@lru_cache(maxsize=4096)
def amount(resource: str, quantity: str) -> int:
    """A quantity as kube-scheduler counts it, rounded up.

    Raises:
        ValueError: it is not a quantity (the API server admits none such).
    """
    match = _QUANTITY.fullmatch(quantity.strip())
    if match is None or not any(character.isdigit() for character in match[1]):
        raise ValueError(f"{quantity!r} is not a quantity")
    number, suffix = Fraction(match[1]), match[2]
    if suffix in _BINARY:
        factor = Fraction(1024) ** _BINARY[suffix]
    else:
        power = _DECIMAL.get(suffix)
        factor = Fraction(10) ** (int(suffix[1:]) if power is None else power)
    exact = number * factor * (1000 if resource == CPU else 1)
    return -(-exact.numerator // exact.denominator)


def amounts(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    """A whole resource list."""
    return {name: amount(name, str(value)) for name, value in (quantities or {}).items()}


def pod_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """What a pod occupies on its node: its containers together, or the largest init container.

    An init container with restartPolicy Always (a sidecar) counts with the containers.
    """
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        own = _requests(container)
        if container.get("restartPolicy") == "Always":
            running = add(running, own)
            own = running
        else:
            own = add(running, own)
        peak = _maximum(peak, own)
    for container in spec.get("containers") or ():
        running = add(running, _requests(container))
    return add(_maximum(running, peak), amounts(spec.get("overhead")))


def add(left: Mapping[str, int], right: Mapping[str, int], sign: int = 1) -> dict[str, int]:
    """Sum (or, with sign -1, difference) by resource."""
    total = dict(left)
    for name, value in right.items():
        total[name] = total.get(name, 0) + sign * value
    return total


def names_of(spec: Mapping[str, Any]) -> frozenset[str]:
    """Every resource that a container of the pod requests or limits."""
    return frozenset(
        name
        for container in _containers(spec)
        for kind in ("requests", "limits")
        for name in (container.get("resources") or {}).get(kind) or ()
    )


def _containers(spec: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield from spec.get("containers") or ()
    yield from spec.get("initContainers") or ()


def _requests(container: Mapping[str, Any]) -> dict[str, int]:
    return amounts((container.get("resources") or {}).get("requests"))


def _maximum(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in {*left, *right}}
