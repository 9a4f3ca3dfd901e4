"""Where the next page begins: a text that the caller gives back.

It holds the key of the last row, so who may not see names must not get it as it is (the API of the
metrics service seals it).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from hamicommon.errors import InvalidRequest
from hamicommon.ledger.questions.parameters import Value
from hamicommon.ledger.questions.question import ColumnKind, Question

_MOST = 4096
"""Bytes: some names of 253 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """After which row, of the answer as of which moment."""

    as_of: datetime
    key: tuple[Value, ...]


def write_position(asked: Question, as_of: datetime, row: Mapping[str, Any]) -> str:
    """Of the last row of a page."""
    content = [asked.name, as_of, *(row[name] for name in asked.key)]
    return base64.urlsafe_b64encode(orjson.dumps(content)).decode()


def read_position(asked: Question, text: str) -> Position:
    """Raises: InvalidRequest for a text that is no position of this question."""
    try:
        if len(text) > _MOST:
            raise ValueError("too long")
        name, as_of, *key = orjson.loads(base64.b64decode(text, altchars=b"-_", validate=True))
        if name != asked.name or len(key) != len(asked.key):
            raise ValueError("of another question")
        return Position(
            as_of=_time(as_of),
            key=tuple(
                _value(asked.column(name).kind, value)
                for name, value in zip(asked.key, key, strict=True)
            ),
        )
    except (ValueError, TypeError, binascii.Error) as exc:
        raise InvalidRequest(
            f"after: it is no page of {asked.name}; leave it out to begin with the first"
        ) from exc


def _value(kind: ColumnKind, value: object) -> Value:
    match kind, value:
        case ColumnKind.TIME, str():
            return _time(value)
        case ((ColumnKind.SECONDS | ColumnKind.RATIO), int() | float()):
            return float(value)
        case ((ColumnKind.BYTES | ColumnKind.COUNT), int()) if abs(value) < 1 << 63:
            return value
        case ColumnKind.TEXT, str() if "\0" not in value:
            return value
    raise ValueError(f"{value!r} is no {kind}")


def _time(text: object) -> datetime:
    found = datetime.fromisoformat(str(text))
    if found.tzinfo is None:
        raise ValueError("a time without a zone")
    return found.astimezone(UTC)
