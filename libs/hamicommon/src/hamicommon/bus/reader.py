"""Reads what came over the bus, or gives in one sentence the reason why it can't be read.

A payload of an unknown version is never guessed at: its consumer lets it go to
the dead letters, where it waits for a release that can read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from hamicommon.errors import InvalidRequest

_MOST_MISTAKES = 3
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


def read(model: type[M], data: bytes, what: str) -> M:
    """The payload as `model`. Raises: InvalidRequest."""
    return _read(model.model_validate_json, data, what)


def read_any(kinds: TypeAdapter[T], data: bytes, what: str) -> T:
    """The payload as one of several kinds; `what` names it in the error. Raises: InvalidRequest."""
    return _read(kinds.validate_json, data, what)


def _read(validate: Callable[[bytes], T], data: bytes, what: str) -> T:
    try:
        return validate(data)
    except ValidationError as exc:
        for error in exc.errors(include_url=False):
            if error["loc"][-1:] == ("version",) and error["type"] == "literal_error":
                raise InvalidRequest(
                    f"{what}: {'.'.join(map(str, error['loc']))} is {error['input']!r}, and this "
                    f"release reads {error['ctx']['expected']}: its sender runs another "
                    "release; update this one, then send the message again"
                ) from exc
        raise InvalidRequest(f"{what} is malformed: {_mistakes(exc)}") from exc


def _mistakes(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)
    mistakes = [f"{'.'.join(map(str, one['loc'])) or 'body'}: {one['msg']}" for one in found]
    more = f" and {len(mistakes) - _MOST_MISTAKES} more" if len(mistakes) > _MOST_MISTAKES else ""
    return "; ".join(mistakes[:_MOST_MISTAKES]) + more
