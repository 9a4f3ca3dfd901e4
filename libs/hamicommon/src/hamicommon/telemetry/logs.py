"""Log lines: one JSON object each, with what `log_context` holds and the current trace.

`telemetry.setup` puts them on standard output.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import orjson
from opentelemetry import trace

from hamicommon.clipping import clip

_LOG_CONTEXT: ContextVar[Mapping[str, str]] = ContextVar(
    "hami_log_context",
    default=MappingProxyType({}),
)
FIELD_LIMIT = 1024
"""Characters of one field: reasons of many nodes fit, an annotation of a megabyte does not."""
EXCEPTION_LIMIT = 32_768
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


@contextmanager
def log_context(**values: str) -> Iterator[None]:
    """Adds fields such as pod_uid or node to every log line written inside the block."""
    token = _LOG_CONTEXT.set({**_LOG_CONTEXT.get(), **values})
    try:
        yield
    finally:
        _LOG_CONTEXT.reset(token)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, `extra` fields, context, trace."""

    def __init__(self, service_name: str) -> None:
        super().__init__()
        self._service_name = service_name

    def format(self, record: logging.LogRecord) -> str:
        """Renders the record."""
        fields = {k: v for k, v in record.__dict__.items() if k not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        bounded = {
            name: value[:EXCEPTION_LIMIT] if name == "exception" else clip(value, FIELD_LIMIT)
            for name, value in fields.items()
            if isinstance(value, str) and len(value) > FIELD_LIMIT
        }
        message = record.getMessage()
        line: dict[str, Any] = {
            "time": _moment(record.created),
            "level": record.levelname,
            "service": self._service_name,
            "logger": record.name,
            "message": message if len(message) <= FIELD_LIMIT else clip(message, FIELD_LIMIT),
            **_LOG_CONTEXT.get(),
            **fields,
            **bounded,
        }
        if "trace_id" not in line:
            span = trace.get_current_span().get_span_context()
            if span.is_valid:
                line["trace_id"] = f"{span.trace_id:032x}"
        try:
            return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # an integer of more than 64 bits, half a character: rare, and no loss
            return json.dumps(line, default=str)


def _moment(seconds: float) -> str:
    """ISO 8601 in UTC with milliseconds."""
    whole, thousandths = divmod(int(seconds * 1000), 1000)
    return f"{_second(whole)}.{thousandths:03d}+00:00"


@lru_cache(maxsize=4)
def _second(whole: int) -> str:
    """Worked out once for all lines of a second."""
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
