"""Attributes, context managers and file format of spans that all services share."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import lru_cache

import orjson
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Span, SpanContext, Tracer, use_span


def pod_attributes(namespace: str = "", name: str = "", uid: str = "") -> dict[str, str]:
    """Return the span attributes that identify a pod; unknown ones are left out.

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
    """Open a current span for the block, cheaply, as every pod needs some.

    What `Tracer.start_as_current_span` is, by one context manager: there it is one inside the SDK's
    inside that of the API's stand-in for the SDK's tracer, and of a span that does nothing they are
    a third of the cost.
    """
    span = tracer.start_span(name, context=context, attributes=attributes)
    return use_span(span, end_on_exit=True)


def span_line(span: ReadableSpan) -> bytes:
    """Return a span as a line of JSON.

    The fields are those of the SDK's own `to_json` without the resource, which is the same in every
    line; that one costs ten times as much on the interpreter lock that decisions need.
    """
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
    """Format a whole second, cached for all spans of that second."""
    return datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
