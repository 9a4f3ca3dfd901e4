"""Log lines: one JSON object each, with what `log_context` holds and the current trace.

`telemetry.setup` puts them on standard output.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TextIO

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


class log_context:  # noqa: N801 - used as a statement, like contextlib's own
    """Adds fields such as pod_uid or node to every log line written inside the block."""

    __slots__ = ("_token", "_values")

    def __init__(self, **values: str) -> None:
        self._values = values

    def __enter__(self) -> None:
        self._token = _LOG_CONTEXT.set({**_LOG_CONTEXT.get(), **self._values})

    def __exit__(self, *_ended: object) -> None:
        _LOG_CONTEXT.reset(self._token)


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
        name, message = record.name, record.getMessage()
        return self.line(record.created, record.levelname, name, message, fields)

    def line(
        self, created_s: float, level: str, logger: str, message: str, fields: Mapping[str, object]
    ) -> str:
        """Renders what a record consists of; `created_s`: Unix time."""
        bounded = {
            name: value[:EXCEPTION_LIMIT] if name == "exception" else clip(value, FIELD_LIMIT)
            for name, value in fields.items()
            if isinstance(value, str) and len(value) > FIELD_LIMIT
        }
        line: dict[str, Any] = {
            "time": _moment(created_s),
            "level": level,
            "service": self._service_name,
            "logger": logger,
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


class TurnHandler(logging.StreamHandler[TextIO]):
    """Writes the lines of one turn of the event loop at once, in their order.

    A write per line is a tenth of what an admission review costs. Lines from outside of a loop, and
    warnings and worse, are written at once with all that waits; so is everything at an orderly end
    (`logging.shutdown`). Only a process that is killed loses the lines of its last turn.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._waits = threading.Lock()
        self._waiting: list[str] = []
        self._flushed_by: asyncio.AbstractEventLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Takes the record; never raises."""
        try:
            self.take(self.format(record), at_once=record.levelno >= logging.WARNING)
        except Exception:  # noqa: BLE001 - a line that can't be written must not end its writer
            self.handleError(record)

    def take(self, line: str, *, at_once: bool = False) -> None:
        """Takes a rendered line. Raises: OSError or ValueError where it is written at once."""
        with self._waits:
            self._waiting.append(line)
        if at_once or not self._is_flushed_later():
            self.flush()

    def _is_flushed_later(self) -> bool:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        if loop is not self._flushed_by:
            loop.call_soon(self.flush)
            self._flushed_by = loop
        return True

    def flush(self) -> None:
        """Writes what waits."""
        self.acquire()
        try:
            self._flushed_by = None
            with self._waits:
                lines, self._waiting = self._waiting, []
            if lines:
                self.stream.write("\n".join((*lines, "")))
            super().flush()
        finally:
            self.release()


class LineLogger:
    """Writes INFO lines of one logger, for whoever writes a thousand of them a second.

    Where a `TurnHandler` is the only one that would get them, as in every service, no record is
    made: records are a twelfth of what an admission review costs.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, message: str, fields: Mapping[str, object]) -> None:
        """Writes one line with these fields; never raises."""
        if not self._logger.isEnabledFor(logging.INFO):
            return
        try:
            written = self._written(message, fields)
        except Exception:  # noqa: BLE001 - logging itself says below what is wrong, and goes on
            written = False
        if not written:
            self._logger.info(message, extra=dict(fields))

    def _written(self, message: str, fields: Mapping[str, object]) -> bool:
        """False where this is not the way."""
        handlers = logging.root.handlers
        handler = handlers[0] if len(handlers) == 1 else None
        if not isinstance(handler, TurnHandler) or not isinstance(handler.formatter, JsonFormatter):
            return False
        handler.take(
            handler.formatter.line(time.time(), "INFO", self._logger.name, message, fields)
        )
        return True
