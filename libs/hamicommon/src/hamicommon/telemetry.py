"""Logs, traces and their context, set up once per process by `setup`.

Logs are JSON lines on standard output with trace id and whatever `log_context` holds. Spans go to a
file, to an OTLP endpoint, to both or nowhere; they are exported from a bounded background queue, so
a collector that is down costs spans, never time. The context travels in W3C form over HTTP headers,
NATS headers and the pod annotation `hami.io/traceparent` (`inject` and `extract`).
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import orjson
from opentelemetry import context as otel_context
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, Span, SpanContext, StatusCode, Tracer

from hamicommon.settings import TelemetrySettings

_LOG_CONTEXT: ContextVar[Mapping[str, str]] = ContextVar(
    "hami_log_context",
    default=MappingProxyType({}),
)
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


def is_probe(scope: Mapping[str, Any]) -> bool:
    """Whether an ASGI request is a health check or a scrape: their traces tell nobody anything."""
    return scope.get("path") in ("/healthz", "/readyz", "/livez", "/metrics")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, `extra` fields, context, trace."""

    def __init__(self, service_name: str) -> None:
        super().__init__()
        self._service_name = service_name

    def format(self, record: logging.LogRecord) -> str:
        """Renders the record."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "service": self._service_name,
            "logger": record.name,
            "message": record.getMessage(),
            **_LOG_CONTEXT.get(),
            **{key: value for key, value in record.__dict__.items() if key not in _STANDARD},
        }
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            line["trace_id"] = f"{span.trace_id:032x}"
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # an integer of more than 64 bits, half a character: rare, and no loss
            return json.dumps(line, default=str)


class FileSpanExporter(SpanExporter):
    """Appends finished spans to a file, one JSON object per line.

    The fields are those of the SDK's own `to_json` without the resource, which is the same in every
    line; that one costs ten times as much, on the interpreter lock that decisions need.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._lock = threading.Lock()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Writes the batch with one flush."""
        with self._lock:
            self._file.write(b"".join(map(_span_line, spans)))
            self._file.flush()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Closes the file."""
        self._file.close()


def _span_line(span: ReadableSpan) -> bytes:
    service = span.resource.attributes.get("service.name", "")
    fields = {
        "name": span.name,
        "service": service,
        "context": _context(span.get_span_context()),
        "parent_id": f"0x{span.parent.span_id:016x}" if span.parent else None,
        "start_time": _moment(span.start_time),
        "end_time": _moment(span.end_time),
        "status": span.status.status_code.name,
        "attributes": dict(span.attributes or {}),
        "events": [
            {"name": e.name, "at": _moment(e.timestamp), "attributes": dict(e.attributes or {})}
            for e in span.events
        ],
        "links": [{"context": _context(link.context)} for link in span.links],
    }
    return orjson.dumps(fields, default=str, option=orjson.OPT_APPEND_NEWLINE)


def _context(context: SpanContext | None) -> dict[str, str]:
    if context is None:
        return {}
    return {"trace_id": f"0x{context.trace_id:032x}", "span_id": f"0x{context.span_id:016x}"}


def _moment(nanoseconds: int | None) -> str | None:
    if nanoseconds is None:
        return None
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat()


def setup(service_name: str, settings: TelemetrySettings) -> None:
    """Configures logging and tracing for this process; call it once, before anything else."""
    # What no line of ours shows need not be found out for each (the logging HOWTO, Optimization).
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter(service_name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    for noisy in ("uvicorn.access", "nats", "httpx", "asyncio", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    provider = TracerProvider(resource=Resource.create({"service.name": service_name}))
    if settings.traces_file is not None:
        _export(provider, FileSpanExporter(settings.traces_file))
    if settings.otlp_endpoint:
        # Here: a process that sends to nobody need not have an HTTP client and its messages.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        endpoint = settings.otlp_endpoint.rstrip("/") + "/v1/traces"
        _export(provider, OTLPSpanExporter(endpoint=endpoint, timeout=5))
    trace.set_tracer_provider(provider)


def _export(provider: TracerProvider, exporter: SpanExporter) -> None:
    # 500 ms: a trace shall be readable soon after the pod ran; 8192 spans is minutes of decisions.
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=8192, schedule_delay_millis=500)
    )


def shutdown() -> None:
    """Flushes spans that are still queued."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.shutdown()


class root_span:  # noqa: N801 - used as a statement, like contextlib's own
    """A span around a block, current inside of it, that begins a trace whatever is current."""

    __slots__ = ("_attributes", "_links", "_name", "_span", "_token", "_tracer")

    def __init__(
        self, tracer: Tracer, name: str, *, links: Sequence[Link], attributes: Mapping[str, str]
    ) -> None:
        self._tracer = tracer
        self._name = name
        self._links = links
        self._attributes = attributes

    def __enter__(self) -> Span:
        self._span = self._tracer.start_span(
            self._name, context=Context(), links=self._links, attributes=self._attributes
        )
        self._token = otel_context.attach(trace.set_span_in_context(self._span))
        return self._span

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        otel_context.detach(self._token)
        _end(self._span, error)


class leaf_span:  # noqa: N801 - used as a statement, like contextlib's own
    """A span around a block in which no other span begins.

    A third of the cost of `start_as_current_span`, which also sets and resets the context.
    """

    __slots__ = ("_name", "_span", "_tracer")

    def __init__(self, tracer: Tracer, name: str) -> None:
        self._tracer = tracer
        self._name = name

    def __enter__(self) -> Span:
        self._span = self._tracer.start_span(self._name)
        return self._span

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _end(self._span, error)


def _end(span: Span, error: BaseException | None) -> None:
    if isinstance(error, Exception):
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
    span.end()


def inject(headers: MutableMapping[str, str] | None = None) -> dict[str, str]:
    """Returns `headers` with the current trace context added as `traceparent`."""
    carrier = dict(headers or {})
    propagate.inject(carrier)
    return carrier


def extract(headers: Mapping[str, str] | None) -> Context:
    """Reads a trace context out of headers; without one the context is empty."""
    return propagate.extract(dict(headers or {}))


def traceparent() -> str:
    """The current span in W3C form, or the empty string outside a span."""
    return _traceparent(trace.get_current_span().get_span_context())


def _traceparent(span: SpanContext) -> str:
    if not span.is_valid:
        return ""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def link_to(traceparent_value: str) -> list[Link]:
    """A link to the span named by a `traceparent`, for a trace that follows from another one."""
    if not traceparent_value:
        return []
    context: SpanContext = trace.get_current_span(
        extract({"traceparent": traceparent_value})
    ).get_span_context()
    return [Link(context)] if context.is_valid else []
