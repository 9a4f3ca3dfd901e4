"""Resource quantities as the API server reads and writes them: exact, in canonical form.

`1024Mi` is written back as `1Gi`, `0.5` as `500m`, `1000` as `1k`; anything finer than a nano unit
is rounded up. Source: apimachinery `api/resource`, Quantity.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

PATTERN = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_NUMBER = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)([a-zA-Z]*[-+]?\d*)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_NAMES = {power: name for name, power in _DECIMAL.items()}
_BINARY_NAMES = {power: name for name, power in _BINARY.items()}


@lru_cache(maxsize=4096)
def parse(text: str) -> tuple[Fraction, str]:
    """The exact value and its family: `binary`, `decimal` or `exponent`.

    Raises: ValueError where `text` is no quantity.
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ValueError(f"quantities must match the regular expression '{PATTERN}'")
    sign, digits, suffix = found.groups()
    number = Fraction(digits.rstrip(".") or "0") * (-1 if sign == "-" else 1)
    if suffix in _BINARY:
        return _to_nano(number * 1024 ** _BINARY[suffix]), "binary"
    if suffix in _DECIMAL:
        return _to_nano(number * Fraction(10) ** _DECIMAL[suffix]), "decimal"
    if exponent := re.fullmatch(r"[eE]([-+]?\d{1,3})", suffix):
        return _to_nano(number * Fraction(10) ** int(exponent[1])), "exponent"
    raise ValueError("unable to parse quantity's suffix")


@lru_cache(maxsize=4096)
def value(text: str) -> Fraction:
    """The exact value of a quantity."""
    return parse(text)[0]


@lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """The one spelling that the server stores for `text`."""
    number, family = parse(text)
    return render(number, family)


def render(number: Fraction, family: str = "decimal") -> str:
    """Write `number` in the canonical form of its family."""
    if number == 0:
        return "0"
    if family == "binary" and abs(number) >= 1024:
        return _render_binary(_round_up(number))
    return _render_decimal(number, family)


def _render_binary(number: int) -> str:
    power = 0
    while power < max(_BINARY_NAMES) and number % 1024 == 0:
        number //= 1024
        power += 1
    return f"{number}{_BINARY_NAMES.get(power, '')}"


def _render_decimal(number: Fraction, family: str) -> str:
    power = -9
    mantissa = number * 10**9
    while power < 18 and mantissa % 1000 == 0:
        mantissa /= 1000
        power += 3
    if family == "exponent":
        return f"{mantissa}e{power}" if power else str(mantissa)
    return f"{mantissa}{_DECIMAL_NAMES[power]}"


def _to_nano(number: Fraction) -> Fraction:
    return Fraction(_round_up(number * 10**9), 10**9)


def _round_up(number: Fraction) -> int:
    """Away from zero, as Quantity does when precision is lost."""
    whole = -(-abs(number.numerator) // number.denominator)
    return whole if number >= 0 else -whole
