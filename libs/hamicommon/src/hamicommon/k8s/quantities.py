"""Parse and format Kubernetes quantities exactly as the API machinery does.

Resource amounts arrive as text (`"16Gi"`, `"1k"`) or as JSON numbers. `parse_int` answers what
`Quantity.AsInt64` answers, which depends on how the number is *written*: `10.5k` is an integer to
it, `16.0Gi` and `1000m` are not. `canonical` writes what the API server stores: `1024Mi` as `1Gi`,
`0.5` as `500m`. Source: apimachinery `pkg/api/resource`; only a number without any digit, which is
0 there, is refused here.
The vendors build device requests from these, kubelocal what its pods ask for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from hamicommon.clipping import clip
from hamicommon.errors import InvalidRequest

INT64_MAX = 2**63 - 1

Family = Literal["binary", "decimal", "exponent"]
"""Kind of suffix with which a quantity is written."""

_WRITTEN = re.compile(
    r"([+-]?)(?=\.?[0-9])0*([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII
)
_PLAIN = re.compile("[0-9]{1,18}", re.ASCII)
"""Pattern of plain numbers that always fit an int64, which most amounts are."""
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_NAMES = {power: name for name, power in _DECIMAL.items()}
_BINARY_NAMES = ("", *_BINARY)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]{1,9})")
_LONGEST = 100
"""Maximum characters of a quantity; an int64 with any fraction and suffix needs fewer."""
_LARGEST_EXPONENT = 999
"""Maximum exponent that is computed."""
_DIGITS_OF_INT64 = 18
"""Number of decimal digits that always fit an int64; longer numbers are parsed slowly."""
_NANO = 10**9
"""Number of nano units in one; smaller parts are rounded away from zero."""


class NotAQuantity(InvalidRequest):
    """Error: the value is not a quantity."""


class NoSuchSuffix(NotAQuantity):
    """Error: the letters after the number are not a known unit."""


@dataclass(frozen=True, slots=True)
class _QuantityParts:
    """Parts of a quantity: sign, digits before and after the point, and the power of its suffix."""

    negative: bool
    whole: str
    decimals: str
    base: int
    exponent: int
    family: Family

    @property
    def value(self) -> Fraction:
        digits = int(self.whole + self.decimals)
        exact = Fraction(digits, 10 ** len(self.decimals)) * Fraction(self.base) ** self.exponent
        return Fraction(_away_from_zero((-exact if self.negative else exact) * _NANO), _NANO)

    @property
    def is_zero(self) -> bool:
        """Return whether all digits are 0."""
        return not (self.whole + self.decimals).strip("0")

    @property
    def is_short(self) -> bool:
        """Return whether Kubernetes stores the number as an int64 with a decimal scale."""
        if self.base == 10:
            return len(self.whole) + len(self.decimals) <= _DIGITS_OF_INT64
        # 2**10 takes about three decimal digits; a fraction of a binary unit is never short.
        room = 15 - len(self.whole) - self.exponent * 3 // 10 - 1
        return not self.decimals and room >= 0


def parse_int(quantity: object) -> int | None:
    """Return the integer of `Quantity.AsInt64`, or None if it has none.

    None means a fraction, or an integer written as one (`16.0Gi`, `1000m`), or too large.

    Raises: NotAQuantity.
    """
    if type(quantity) is int and abs(quantity) < 10**_DIGITS_OF_INT64:
        return quantity
    if isinstance(quantity, str) and _PLAIN.fullmatch(quantity):
        return int(quantity)
    written = _read(quantity)
    if not written.is_short:
        return None
    scale = (written.exponent if written.base == 10 else 0) - len(written.decimals)
    if scale < 0:
        return None
    if written.base == 10 and scale > _DIGITS_OF_INT64:
        return None if int(written.whole + written.decimals) else 0
    value = written.value
    return int(value) if abs(value) <= INT64_MAX else None


def parse_ceil(quantity: object) -> int:
    """Return the quantity as an int64, rounded away from zero (`Quantity.Value`).

    Raises: NotAQuantity, or InvalidRequest when it is out of every range.
    """
    whole = _away_from_zero(parse_exact(quantity))
    return max(-INT64_MAX, min(whole, INT64_MAX))


def parse_milli(quantity: object) -> int:
    """Return the quantity in thousandths, rounded away from zero (`Quantity.MilliValue`).

    Where that would overflow an int64 it is the true value.

    Raises: NotAQuantity, or InvalidRequest when it is out of every range.
    """
    return _away_from_zero(parse_exact(quantity) * 1000)


def parse_exact(quantity: object) -> Fraction:
    """Return the exact value, to nano units.

    Raises: NotAQuantity, or InvalidRequest when it is out of every range.
    """
    written = _read(quantity)
    if abs(written.exponent) > _LARGEST_EXPONENT:
        raise InvalidRequest(f"{_clip_repr(quantity)} is out of range: write an amount below 2^63")
    return written.value


def is_zero(quantity: object) -> bool:
    """Return whether a quantity is 0, however written (`0.0`, `0k`); False if it is no quantity.

    >>> [is_zero(text) for text in ("0", 0, "0.0", "-0k", "1m", "junk")]
    [True, True, True, True, False, False]
    """
    try:
        return _read(quantity).is_zero
    except InvalidRequest:
        return False


def family(quantity: object) -> Family:
    """Return the kind of suffix with which the quantity is written.

    Raises: NotAQuantity.
    """
    return _read(quantity).family


@lru_cache(maxsize=4096)
def canonical(quantity: str) -> str:
    """Return the spelling in which the API server stores the quantity.

    Raises: NotAQuantity, or InvalidRequest when it is out of every range.
    """
    return render(parse_exact(quantity), family(quantity))


def render(number: Fraction, family: Family = "decimal") -> str:
    """Format `number` (at most nano precision) in the canonical form of its family."""
    if number == 0:
        return "0"
    if family == "binary" and abs(number) >= 1024:
        return _render_binary(_away_from_zero(number))
    return _render_decimal(number, family)


def _render_binary(number: int) -> str:
    power = 0
    while power < len(_BINARY_NAMES) - 1 and number % 1024 == 0:
        number //= 1024
        power += 1
    return f"{number}{_BINARY_NAMES[power]}"


def _render_decimal(number: Fraction, family: Family) -> str:
    power = -9
    mantissa = number * _NANO
    # Letters end at E; an exponent has no end.
    while mantissa % 1000 == 0 and (power < 18 or family == "exponent"):
        mantissa /= 1000
        power += 3
    if family == "exponent":
        return f"{mantissa}e{power}" if power else str(mantissa)
    return f"{mantissa}{_DECIMAL_NAMES[power]}"


def _away_from_zero(number: Fraction) -> int:
    size = -(-abs(number.numerator) // number.denominator)
    return size if number >= 0 else -size


def _clip_repr(quantity: object) -> str:
    return clip(repr(quantity), _LONGEST)


def _read(quantity: object) -> _QuantityParts:
    if isinstance(quantity, bool) or not isinstance(quantity, str | int | float):
        raise NotAQuantity(
            f"{_clip_repr(quantity)} is not a quantity: write a number such as 1 or 16Gi"
        )
    return _read_text(str(quantity).strip())


@lru_cache(maxsize=4096)
def _read_text(text: str) -> _QuantityParts:
    if len(text) > _LONGEST:
        raise InvalidRequest(f"{clip(text, 24)} is out of range: write an amount below 2^63")
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise NotAQuantity(
            f"{_clip_repr(text)} is not a quantity: write a number such as 1 or 16Gi"
        )
    base, exponent, family = _suffix(text, match.group(4))
    return _QuantityParts(
        negative=match.group(1) == "-",
        whole=match.group(2) or "0",
        decimals=match.group(3) or "",
        base=base,
        exponent=exponent,
        family=family,
    )


def _suffix(text: str, suffix: str) -> tuple[int, int, Family]:
    """Return base, exponent and family of a suffix."""
    if suffix in _DECIMAL:
        return 10, _DECIMAL[suffix], "decimal"
    if suffix in _BINARY:
        return 2, _BINARY[suffix], "binary"
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is None:
        raise NoSuchSuffix(
            f"{_clip_repr(text)} is not a quantity: {suffix!r} is no unit such as m, k or Gi"
        )
    return 10, int(exponent.group(1)), "exponent"
