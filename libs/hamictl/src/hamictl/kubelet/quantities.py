"""Kubernetes quantities ("500m", "64Gi", "1e3") as whole numbers."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from hamicommon.errors import InvalidRequest

_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def value(quantity: str | int | float) -> int:
    """The quantity in its base unit, rounded up as Kubernetes does.

    Raises: InvalidRequest when it is not a quantity.
    """
    return math.ceil(_exact(quantity))


def milli_value(quantity: str | int | float) -> int:
    """The quantity in thousandths of its base unit, rounded up.

    Raises: InvalidRequest when it is not a quantity.
    """
    return math.ceil(_exact(quantity) * 1000)


def _exact(quantity: str | int | float) -> Fraction:
    match = _FORM.fullmatch(str(quantity).strip())
    if match is None:
        raise InvalidRequest(f'"{quantity}" is not a quantity such as 500m, 2 or 64Gi')
    number, suffix = Fraction(match[1]), match[2] or ""
    if suffix in _BINARY:
        return number * Fraction(2) ** _BINARY[suffix]
    if suffix in _DECIMAL:
        return number * Fraction(10) ** _DECIMAL[suffix]
    return number * Fraction(10) ** int(suffix[1:])
