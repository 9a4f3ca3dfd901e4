"""Spans that cost little where a process makes a thousand a second, and the file they go to.

`begin_trace` begins a trace, `leaf_span` is for blocks in which no other span begins; elsewhere the
tracer's own `start_as_current_span` is right. `telemetry.setup` says where spans are exported.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from types import TracebackType

import orjson
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, sampling
from opentelemetry.sdk.trace import Tracer as SdkTracer
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
)
from opentelemetry.util.types import AnyValue, Attributes

from hamicommon.clipping import clip

logger = logging.getLogger(__name__)

MOST_WAITING = 8192
"""Lines; minutes of decisions, seconds of the webhook."""
WRITE_EVERY_S = 0.5
"""A trace shall be readable soon after the pod ran."""

MOST_OF_AN_ATTRIBUTE = 4096
"""Characters."""

_ALWAYS = (sampling.DEFAULT_ON, sampling.ALWAYS_ON)
"""Samplers that take every root and need not be asked."""
_UNSET = Status(StatusCode.UNSET)
_RANDOM = TraceFlags(TraceFlags.SAMPLED | TraceFlags.RANDOM_TRACE_ID)
_SCOPE = InstrumentationScope("hamicommon.telemetry.spans")
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def pod_attributes(*, uid: str = "", namespace: str = "", name: str = "") -> dict[str, str]:
    """How every span of every service names its pod; what is not known is left out.

    The names are OpenTelemetry's semantic conventions, resource attributes of Kubernetes.
    """
    given = {"k8s.pod.uid": uid, "k8s.namespace.name": namespace, "k8s.pod.name": name}
    return {key: value for key, value in given.items() if value}


class FileSpans(SpanProcessor):
    """Appends finished spans to a file, one JSON object per line, twice a second.

    A span becomes its line where it ends: the thread beside has bytes to write and no more, because
    whatever it computed would be computed on the interpreter lock that decisions need. The fields
    are those of the SDK's own `to_json` without the resource, which is the same in every line; that
    one costs ten times as much. What a file can't take is lost and said; spans cost no time.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._lines: list[bytes] = []
        self._lost = 0
        self._waiting, self._writing = threading.Lock(), threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Takes a span that is sampled."""
        context = span.get_span_context()
        if context is None or not context.trace_flags.sampled:
            return
        line = _span_line(span)
        with self._waiting:
            if len(self._lines) < MOST_WAITING:
                self._lines.append(line)
            else:
                self._lost += 1

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Writes what waits; False when the file did not take it."""
        with self._writing:
            with self._waiting:
                lines, self._lines = self._lines, []
                lost, self._lost = self._lost, 0
            try:
                self._file.write(b"".join(lines))
                self._file.flush()
            except OSError as exc:
                logger.warning("spans lost", extra={"spans": lost + len(lines), "error": str(exc)})
                return False
        if lost:
            logger.warning("spans lost", extra={"spans": lost, "error": "too many were waiting"})
        return True

    def shutdown(self) -> None:
        """Writes what waits and closes the file."""
        self._stopped.set()
        self._thread.join()
        self.force_flush()
        with contextlib.suppress(OSError):  # what the file did not take was told
            self._file.close()

    def _run(self) -> None:
        while not self._stopped.wait(WRITE_EVERY_S):
            self.force_flush()


def _clipped(attributes: Attributes) -> dict[str, AnyValue]:
    """Tenants choose names and messages; a line of the file stays one that can be read."""
    return {
        key: _clipped_value(key, value) if isinstance(value, str) else value
        for key, value in (attributes or {}).items()
    }


def _clipped_value(key: str, value: str) -> str:
    # JSON writes a traceback's line breaks, and people want them back.
    traced = key == "exception.stacktrace"
    return value[:MOST_OF_AN_ATTRIBUTE] if traced else clip(value, MOST_OF_AN_ATTRIBUTE)


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
        "attributes": _clipped(span.attributes),
        "events": [
            {"name": e.name, "at": _moment(e.timestamp), "attributes": _clipped(e.attributes)}
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
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{_second(seconds)}.{rest // 1000:06d}+00:00"


@lru_cache(maxsize=16)
def _second(whole: int) -> str:
    """Worked out once for all spans of a second."""
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class RootSpan(ReadableSpan, Span):
    """The beginning of a trace, for one thread and for attributes that are texts.

    The SDK's own span costs several times as much: it checks and copies every attribute under a
    lock, so that many threads may change and read it while it runs. Where it ends, exporters get
    this object itself and no copy: nobody changes it any more.
    """

    def __init__(
        self,
        tracer: SdkTracer,
        name: str,
        context: SpanContext,
        links: Sequence[Link],
    ) -> None:
        self._texts: dict[str, AnyValue] = {}
        self._noted: list[Event] = []
        ReadableSpan.__init__(
            self,
            name,
            context,
            resource=tracer.resource,
            attributes=self._texts,
            events=self._noted,
            links=links,
            status=_UNSET,
            start_time=time.time_ns(),
            instrumentation_scope=_SCOPE,
        )
        self._begun = context
        self._processor = tracer.span_processor

    def get_span_context(self) -> SpanContext:
        """Its ids."""
        return self._begun

    def is_recording(self) -> bool:
        """It is."""
        return True

    def set_attributes(self, attributes: Mapping[str, AnyValue]) -> None:
        """Adds attributes; nothing may change them afterwards."""
        self._texts.update(attributes)

    def set_attribute(self, key: str, value: AnyValue) -> None:
        """Adds one."""
        self._texts[key] = value

    def update_name(self, name: str) -> None:
        """Calls it otherwise."""
        self._name = name

    def add_event(
        self, name: str, attributes: Attributes = None, timestamp: int | None = None
    ) -> None:
        """Notes something that happened meanwhile."""
        self._noted.append(Event(name, attributes, timestamp))

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Notes an exception as an event."""
        said: dict[str, AnyValue] = {
            "exception.type": type(exception).__qualname__,
            "exception.message": str(exception),
            "exception.stacktrace": "".join(traceback.format_exception(exception)),
            "exception.escaped": str(escaped),
            **(attributes or {}),
        }
        self.add_event("exception", said, timestamp)

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Says how it ended."""
        self._status = status if isinstance(status, Status) else Status(status, description)

    def end(self, end_time: int | None = None) -> None:
        """Hands it to whoever exports spans; called once."""
        self._end_time = end_time or time.time_ns()
        self._processor.on_end(self)


def begin_trace(tracer: Tracer, name: str, links: Sequence[Link] = ()) -> Span:
    """A span that begins a trace whatever is current; whoever begins it ends it (`Span.end`).

    It is not made current: `trace.use_span` does that where something else is begun meanwhile.
    """
    # A sampler that some variable of OpenTelemetry's chose is asked by the SDK.
    if isinstance(tracer, SdkTracer) and tracer.sampler in _ALWAYS:
        return RootSpan(tracer, name, _context_of(tracer.id_generator), links)
    return tracer.start_span(name, context=Context(), links=links)


def _context_of(ids: IdGenerator) -> SpanContext:
    return SpanContext(
        ids.generate_trace_id(),
        ids.generate_span_id(),
        is_remote=False,
        trace_flags=_RANDOM if ids.is_trace_id_random() else _SAMPLED,
    )


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
