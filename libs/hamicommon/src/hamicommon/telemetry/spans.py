"""What spans of every service have in common, and the file that they may go to.

Spans are the OpenTelemetry SDK's own; which traces are sampled is decided by its standard variables
(`OTEL_TRACES_SAMPLER`). `telemetry.setup` configures where they are exported, `clipped.py` bounds
what a tenant chose of them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import orjson
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import Span, SpanContext, Tracer, use_span

logger = logging.getLogger(__name__)

MOST_WAITING = 8192
"""Lines; minutes of decisions, seconds of the webhook."""
WRITE_EVERY_S = 0.5
"""A trace shall be readable soon after the pod ran."""


def pod_attributes(*, uid: str = "", namespace: str = "", name: str = "") -> dict[str, str]:
    """How every span of every service names its pod; what is not known is left out.

    The names are OpenTelemetry's semantic conventions, resource attributes of Kubernetes.
    """
    given = {"k8s.pod.uid": uid, "k8s.namespace.name": namespace, "k8s.pod.name": name}
    return {key: value for key, value in given.items() if value}


def current_span(
    tracer: Tracer,
    name: str,
    *,
    context: Context | None = None,
    attributes: Mapping[str, str] | None = None,
) -> AbstractContextManager[Span]:
    """A span of the block, for what each pod passes through.

    What `Tracer.start_as_current_span` is, by one context manager: there it is one inside the SDK's
    inside that of the API's stand-in for the SDK's tracer, and of a span that does nothing they are
    a third of the cost.
    """
    span = tracer.start_span(name, context=context, attributes=attributes)
    return use_span(span, end_on_exit=True)


class FileSpans(SpanProcessor):
    """Appends finished spans to a file, one JSON object per line, twice a second.

    A span becomes its line where it ends: the thread beside has bytes to write and no more, because
    whatever it computed would be computed on the interpreter lock that decisions need. The fields
    are those of the SDK's own `to_json` without the resource, which is the same in every line; that
    one costs ten times as much. What the file can't take is lost and logged.
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
        with contextlib.suppress(OSError):  # what the file did not take was logged
            self._file.close()

    def _run(self) -> None:
        while not self._stopped.wait(WRITE_EVERY_S):
            self.force_flush()


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
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{_second(seconds)}.{rest // 1000:06d}+00:00"


@lru_cache(maxsize=16)
def _second(whole: int) -> str:
    """Worked out once for all spans of a second."""
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
