"""Reads Kubernetes quantities exactly as the API machinery does.

Resource amounts arrive as text (`"16Gi"`, `"1k"`) or as JSON numbers. `parse_int` answers what
`Quantity.AsInt64` answers, which depends on how the number is *written*: `10.5k` is an integer to
it, `16.0Gi` and `1000m` are not. Source: apimachinery `pkg/api/resource`, `ParseQuantity`.
`resources.py` and the vendors build device requests from these.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from hamicommon.errors import InvalidRequest

INT64_MAX = 2**63 - 1

_WRITTEN = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?([^0-9.].*)?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]{1,9})")
_LONGEST = 100
"""Characters of a quantity; an int64 with any fraction and suffix needs fewer."""
_DIGITS_OF_INT64 = 18
"""So many decimal digits always fit an int64; longer numbers take Kubernetes' slow path."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A quantity as written: sign, digits before and after the point, and the suffix' power."""

    negative: bool
    whole: str
    decimals: str
    base: int
    exponent: int

    @property
    def value(self) -> Fraction:
        digits = int(self.whole + self.decimals)
        exact = Fraction(digits, 10 ** len(self.decimals)) * Fraction(self.base) ** self.exponent
        return -exact if self.negative else exact

    @property
    def is_short(self) -> bool:
        """True when Kubernetes keeps the number as an int64 with a decimal scale."""
        if self.base == 10:
            return len(self.whole) + len(self.decimals) <= _DIGITS_OF_INT64
        # 2**10 takes about three decimal digits; a fraction of a binary unit is never short.
        room = 15 - len(self.whole) - self.exponent * 3 // 10 - 1
        return not self.decimals and room >= 0


def parse_int(quantity: object) -> int | None:
    """The integer that `Quantity.AsInt64` yields, or None where it yields none.

    None means a fraction, or an integer written as one (`16.0Gi`, `1000m`), or too large.

    Raises: InvalidRequest when `quantity` is no quantity at all.
    """
    written = _read(quantity)
    if not written.is_short:
        return None
    scale = (written.exponent if written.base == 10 else 0) - len(written.decimals)
    if scale < 0:
        return None
    if written.base == 10 and scale > _DIGITS_OF_INT64 and int(written.whole + written.decimals):
        return None
    value = written.value
    return int(value) if abs(value) <= INT64_MAX else None


def parse_ceil(quantity: object) -> int:
    """The quantity as an integer, rounded away from zero (`Quantity.Value`).

    Raises: InvalidRequest when `quantity` is no quantity at all.
    """
    written = _read(quantity)
    if abs(written.exponent) > 2 * _DIGITS_OF_INT64 + 30:
        raise InvalidRequest(f"{quantity!r} is out of range: write an amount below 2^63")
    size = abs(written.value)
    rounded = min(-(-size.numerator // size.denominator), INT64_MAX)
    return -rounded if written.negative else rounded


def _read(quantity: object) -> _Written:
    if isinstance(quantity, bool) or not isinstance(quantity, str | int | float):
        raise InvalidRequest(f"{quantity!r} is not a quantity: write a number such as 1 or 16Gi")
    text = str(quantity).strip()
    if len(text) > _LONGEST:
        raise InvalidRequest(f"{text[:20]}... is out of range: write an amount below 2^63")
    match = _WRITTEN.fullmatch(text)
    suffix = _suffix(match.group(4) or "") if match else None
    if match is None or suffix is None or not re.search(r"[0-9]", text):
        raise InvalidRequest(f"{quantity!r} is not a quantity: write a number such as 1 or 16Gi")
    base, exponent = suffix
    return _Written(
        negative=match.group(1) == "-",
        whole=match.group(2) or "0",
        decimals=match.group(3) or "",
        base=base,
        exponent=exponent,
    )


def _suffix(text: str) -> tuple[int, int] | None:
    """(base, exponent) of a suffix, or None when there is no such suffix."""
    if text in _DECIMAL:
        return 10, _DECIMAL[text]
    if text in _BINARY:
        return 2, _BINARY[text]
    exponent = _EXPONENT.fullmatch(text)
    return (10, int(exponent.group(1))) if exponent else None
