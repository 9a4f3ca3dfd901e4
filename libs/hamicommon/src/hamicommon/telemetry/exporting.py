"""Export spans with masked and shortened texts, also to a file of JSON lines.

Names, messages and reasons of pods become attributes. `SafeExporter` stands before each exporter,
in the thread of the SDK's BatchSpanProcessor, so that neither a secret nor a tenant's control
character reaches a file or a collector.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status
from opentelemetry.util.types import Attributes, AttributeValue

from hamicommon.clipping import clip
from hamicommon.telemetry.masking import mask_secrets
from hamicommon.telemetry.spans import span_line

logger = logging.getLogger(__name__)

MAX_TEXT_LENGTH = 4096
LIMITS = SpanLimits(
    max_attribute_length=2 * MAX_TEXT_LENGTH, max_span_attribute_length=2 * MAX_TEXT_LENGTH
)
"""Limits of the SDK, at twice our length: cutting happens before masking, and hides secrets."""
_STACKTRACE = "exception.stacktrace"


class SafeExporter(SpanExporter):
    """Exporter that masks and shortens text, and logs the beginning and end of failures."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export the spans; a failure is logged once."""
        result = self._exporter.export([_safe_span(span) for span in spans])
        failing = result is not SpanExportResult.SUCCESS
        if failing and not self._failing:
            logger.warning("Failed to export spans, dropping them until it works again")
        elif self._failing and not failing:
            logger.info("Exporting spans again")
        self._failing = failing
        return result

    def shutdown(self) -> None:
        """Shut the exporter down."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return whether the exporter flushed."""
        return self._exporter.force_flush(timeout_millis)


class FileExporter(SpanExporter):
    """Append spans to a file, one JSON object per line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans; if the file can't be written, they are lost."""
        try:
            self._file.write(b"".join(map(span_line, spans)))
            self._file.flush()
        except OSError as exc:
            logger.warning("Failed to write spans", extra={"spans": len(spans), "error": str(exc)})
            return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):  # what the file did not take was logged
            self._file.close()


def _safe_span(span: ReadableSpan) -> ReadableSpan:
    description = span.status.description
    return ReadableSpan(
        name=span.name,
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes=_safe(span.attributes),
        events=[Event(e.name, _safe(e.attributes), e.timestamp) for e in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code, description and _safe_text(description)),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _safe(attributes: Attributes) -> dict[str, AttributeValue]:
    return {key: _safe_value(key, value) for key, value in (attributes or {}).items()}


def _safe_value(key: str, value: AttributeValue) -> AttributeValue:
    if isinstance(value, str):
        # The line breaks of a traceback are ours.
        parts = value.splitlines() if key == _STACKTRACE else [value]
        return "\n".join(map(_safe_text, parts))[:MAX_TEXT_LENGTH]
    if isinstance(value, tuple):
        return tuple(_safe_text(each) if isinstance(each, str) else each for each in value)
    return value


def _safe_text(text: str) -> str:
    return clip(mask_secrets(text[: 2 * MAX_TEXT_LENGTH]), MAX_TEXT_LENGTH)
