"""Conditions in the Common Expression Language, as `matchConditions` of webhooks hold them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


class CelError(ValueError):
    """The expression is malformed, or it failed on these values."""


@lru_cache(maxsize=256)
def _program(expression: str) -> Any:
    # Imported on first use: it takes a quarter of a second, and few clusters have conditions.
    from celpy import Environment
    from celpy.celparser import CELParseError

    environment = Environment()
    try:
        return environment.program(environment.compile(expression))
    except CELParseError as error:
        raise CelError(f"expression '{expression}' does not parse: {error}") from error


def check(expression: str) -> None:
    """Raises: CelError where the expression does not parse."""
    _program(expression)


def holds(expression: str, variables: dict[str, Any]) -> bool:
    """Whether the expression is true of `variables` (decoded JSON).

    Raises: CelError where it fails or does not give a boolean.
    """
    program = _program(expression)
    from celpy.adapter import json_to_cel
    from celpy.celtypes import BoolType
    from celpy.evaluation import CELEvalError

    activation = {name: json_to_cel(value) for name, value in variables.items()}
    try:
        result = program.evaluate(activation)
    except CELEvalError as error:
        raise CelError(f"expression '{expression}' resulted in error: {error}") from error
    if not isinstance(result, BoolType | bool):
        raise CelError(f"expression '{expression}' must evaluate to bool")
    return bool(result)
