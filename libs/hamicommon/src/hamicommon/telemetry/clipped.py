"""Bounds what a tenant chose of a span, and masks secrets in it, once for every exporter.

Names, messages and reasons of pods become attributes. In: a span that ended. Out: the same span, or
where an attribute, an event or the status holds too long or unprintable text, or what looks like a
secret, a copy with that text clipped and masked. Files and OTLP endpoints stand behind one
`ClippedSpans` (`telemetry.setup`).
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace import (
    Event,
    ReadableSpan,
    Span,
    SpanProcessor,
)
from opentelemetry.trace import Status
from opentelemetry.util.types import Attributes, AttributeValue

from hamicommon.clipping import clip
from hamicommon.telemetry.masking import masked

ATTRIBUTE_LIMIT = 4096
"""Characters of one text."""
_STACKTRACE = "exception.stacktrace"


class ClippedSpans(SpanProcessor):
    """Passes spans on to processors, the finished ones clipped."""

    def __init__(self, processors: Sequence[SpanProcessor]) -> None:
        self._next = tuple(processors)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Passes it on: what begins has no attributes yet that a tenant chose."""
        for processor in self._next:
            processor.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Passes on what was clipped."""
        ended = clipped(span)
        for processor in self._next:
            processor.on_end(ended)

    def shutdown(self) -> None:
        """Ends the processors."""
        for processor in self._next:
            processor.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Whether all of them exported what was queued."""
        exported = [processor.force_flush(timeout_millis) for processor in self._next]
        return all(exported)


def clipped(span: ReadableSpan) -> ReadableSpan:
    """The span itself where every text fits, else a copy of it."""
    description = span.status.description
    if (
        _fits(span.attributes)
        and all(_fits(event.attributes) for event in span.events)
        and _text_fits(description or "")
    ):
        return span
    status = Status(
        span.status.status_code, None if description is None else _clipped_text(description)
    )
    return ReadableSpan(
        name=span.name,
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes=_clipped(span.attributes),
        events=[Event(e.name, _clipped(e.attributes), e.timestamp) for e in span.events],
        links=span.links,
        kind=span.kind,
        status=status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _fits(attributes: Attributes) -> bool:
    return all(map(_value_fits, (attributes or {}).values()))


def _value_fits(value: AttributeValue) -> bool:
    if isinstance(value, str):
        return _text_fits(value)
    return not isinstance(value, tuple) or all(map(_value_fits, value))


def _text_fits(text: str) -> bool:
    return len(text) <= ATTRIBUTE_LIMIT and text.isprintable() and masked(text) is text


def _clipped(attributes: Attributes) -> dict[str, AttributeValue]:
    return {key: _clipped_value(key, value) for key, value in (attributes or {}).items()}


def _clipped_value(key: str, value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        return _clipped_lines(value) if key == _STACKTRACE else _clipped_text(value)
    if isinstance(value, tuple):
        return tuple(_clipped_text(each) if isinstance(each, str) else each for each in value)
    return value


def _clipped_text(text: str) -> str:
    # Masked first: half a secret is one too. What is left out anyway need not be looked at.
    return clip(masked(text[: 2 * ATTRIBUTE_LIMIT]), ATTRIBUTE_LIMIT)


def _clipped_lines(traceback: str) -> str:
    """A traceback's line breaks are ours, and people want them back."""
    lines = masked(traceback[: 2 * ATTRIBUTE_LIMIT])[:ATTRIBUTE_LIMIT].splitlines()
    return "\n".join(clip(line, ATTRIBUTE_LIMIT) for line in lines)[:ATTRIBUTE_LIMIT]
