"""Log lines as JSON objects with the context of `log_context` and the current trace.

`telemetry.setup` puts them on standard output. Whatever looks like a secret is masked in all of a
line (`masking.py`), and what Python itself would print, a warning or the error that ends the
process, is a line like any other.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType, TracebackType
from typing import Any

import orjson
from opentelemetry import trace

from hamicommon.clipping import clip
from hamicommon.telemetry.masking import mask_secrets

_LOG_CONTEXT: ContextVar[Mapping[str, str]] = ContextVar(
    "hami_log_context",
    default=MappingProxyType({}),
)
FIELD_LIMIT = 1024
"""Maximum characters of a field: fits reasons of many nodes, but no annotation of a megabyte."""
EXCEPTION_LIMIT = 32_768
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


@contextmanager
def log_context(**values: str) -> Iterator[None]:
    """Add fields such as pod_uid or node to every log line written inside the block."""
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
        """Render the record."""
        fields = {k: v for k, v in record.__dict__.items() if k not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        # Masked before they are cut: half a secret looks like none.
        bounded = {
            name: mask_secrets(value)[:EXCEPTION_LIMIT]
            if name == "exception"
            else _mask_and_clip(value)
            for name, value in fields.items()
            if isinstance(value, str) and len(value) > FIELD_LIMIT
        }
        message = record.getMessage()
        line: dict[str, Any] = {
            "time": _moment(record.created),
            "level": record.levelname,
            "service": self._service_name,
            "logger": record.name,
            "message": message if len(message) <= FIELD_LIMIT else _mask_and_clip(message),
            **_LOG_CONTEXT.get(),
            **fields,
            **bounded,
        }
        if "trace_id" not in line:
            span = trace.get_current_span().get_span_context()
            if span.is_valid:
                line["trace_id"] = f"{span.trace_id:032x}"
        try:
            text = orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # an integer of more than 64 bits, half a character: rare, and no loss
            text = json.dumps(line, default=str)
        return mask_secrets(text)


def _mask_and_clip(text: str) -> str:
    return clip(mask_secrets(text[: 2 * FIELD_LIMIT]), FIELD_LIMIT)


def log_what_python_prints() -> None:
    """Log Python's warnings, and exceptions that end the process or a thread."""
    logging.captureWarnings(True)
    logger = logging.getLogger("python")

    def log_uncaught(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, traceback)
            return
        logger.critical("Exiting on an unexpected error", exc_info=(kind, error, traceback))

    def thread_ended(what: threading.ExceptHookArgs) -> None:
        if what.exc_value is None or issubclass(what.exc_type, SystemExit):
            return
        logger.critical(
            "Ended a thread on an unexpected error",
            extra={"thread_name": "" if what.thread is None else what.thread.name},
            exc_info=(what.exc_type, what.exc_value, what.exc_traceback),
        )

    sys.excepthook = log_uncaught
    threading.excepthook = thread_ended


def _moment(seconds: float) -> str:
    """Format a time as ISO 8601 in UTC with milliseconds."""
    whole, thousandths = divmod(int(seconds * 1000), 1000)
    return f"{_second(whole)}.{thousandths:03d}+00:00"


@lru_cache(maxsize=4)
def _second(whole: int) -> str:
    """Format a whole second, cached for all lines of that second."""
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
