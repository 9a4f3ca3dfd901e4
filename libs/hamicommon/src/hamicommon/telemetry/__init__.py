"""Set up logs and traces of a process, and pass trace context on.

Logs are JSON lines on standard output with the trace id and the fields of `log_context`
(`logs.py`). Spans are the OpenTelemetry SDK's. They are masked and bounded (`exporting.py`) and go
to a file, to an OTLP endpoint, to both or nowhere. The SDK's BatchSpanProcessor exports them from a
bounded queue, so an unreachable collector costs spans, never time. The SDK's standard variables
control sampling, and the collector keeps refusals, errors and slow traces (docs/monitoring.md). The
context travels in W3C form over HTTP headers, NATS headers and the pod annotation
`hami.io/traceparent` (`inject` and `extract`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, Span, SpanContext

from hamicommon.settings import TelemetrySettings
from hamicommon.telemetry.exporting import LIMITS, FileExporter, SafeExporter
from hamicommon.telemetry.logs import JsonFormatter, log_context, log_what_python_prints
from hamicommon.telemetry.spans import current_span, pod_attributes

__all__ = [
    "current_span",
    "extract",
    "inject",
    "is_probe",
    "link_to",
    "log_context",
    "pod_attributes",
    "setup",
    "shutdown",
    "target_info",
    "traceparent",
    "traceparent_of",
]


_ON_THEIR_OWN_BEHALF = (
    *("uvicorn.access", "uvicorn.error", "nats", "httpx", "httpcore", "urllib3"),
    *("asyncio", "watchfiles"),
)
"""Libraries that log each call or connection; our services log the important ones themselves."""
MAX_QUEUED_SPANS = 8192
"""Maximum spans that wait for export: those of some minutes."""
EXPORT_INTERVAL_MS = 500
"""Interval of exports, short so that a trace is readable soon after the pod ran."""


def is_probe(scope: Mapping[str, Any]) -> bool:
    """Return whether an ASGI request is a health check or a scrape, which is not traced."""
    return scope.get("path") in ("/healthz", "/readyz", "/livez", "/metrics")


def setup(service_name: str, settings: TelemetrySettings) -> None:
    """Configure logging and tracing for this process; call it once, before anything else."""
    # Fields that our lines never show are not computed (the logging HOWTO, Optimization).
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter(service_name))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level)
    for noisy in _ON_THEIR_OWN_BEHALF:
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # `SafeExporter` logs when a collector's outage begins and ends, not each attempt in between.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    log_what_python_prints()
    # The sampler is the one that OTEL_TRACES_SAMPLER names; without it, every trace is sampled.
    provider = TracerProvider(
        resource=Resource.create(resource(service_name, settings)), span_limits=LIMITS
    )
    for exporter in _exporters(settings):
        provider.add_span_processor(
            BatchSpanProcessor(
                SafeExporter(exporter),
                max_queue_size=MAX_QUEUED_SPANS,
                schedule_delay_millis=EXPORT_INTERVAL_MS,
            )
        )
    trace.set_tracer_provider(provider)


def resource(service_name: str, settings: TelemetrySettings) -> dict[str, str]:
    """Return OpenTelemetry's resource for this process; unknown attributes are left out."""
    known = {"service.name": service_name, "k8s.cluster.name": settings.cluster_name}
    return {name: value for name, value in known.items() if value}


def target_info(service_name: str, settings: TelemetrySettings) -> dict[str, str] | None:
    """Return the resource's attributes as labels of Prometheus' sample `target_info`.

    None without a cluster's name, because the scrape knows all other attributes. Queries join
    series with the sample by `job` and `instance` (OpenTelemetry, Prometheus compatibility). A
    label with the name on each series would distinguish nothing and cost each series.
    """
    if not settings.cluster_name:
        return None
    found = resource(service_name, settings)
    return {name.replace(".", "_"): value for name, value in found.items()}


def _exporters(settings: TelemetrySettings) -> list[SpanExporter]:
    exporters: list[SpanExporter] = []
    if settings.traces_file is not None:
        exporters.append(FileExporter(settings.traces_file))
    if settings.otlp_endpoint:
        # Imported here: a process without an endpoint needs no HTTP client and its messages.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        endpoint = settings.otlp_endpoint.rstrip("/") + "/v1/traces"
        exporters.append(OTLPSpanExporter(endpoint=endpoint, timeout=5))
    return exporters


def shutdown() -> None:
    """Export the spans that are still waiting."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.shutdown()


def inject(headers: MutableMapping[str, str] | None = None) -> dict[str, str]:
    """Return `headers` with `traceparent` of the current trace added."""
    carrier = dict(headers or {})
    propagate.inject(carrier)
    return carrier


def extract(headers: Mapping[str, str] | None) -> Context:
    """Return the trace context in headers; empty if there is none."""
    return propagate.extract(dict(headers or {}))


def traceparent() -> str:
    """Return the current span in W3C form, or an empty string outside a span."""
    return traceparent_of(trace.get_current_span())


def traceparent_of(begun: Span) -> str:
    """Return a span in W3C form; empty if nothing is traced."""
    span = begun.get_span_context()
    if not span.is_valid:
        return ""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def link_to(traceparent_value: str) -> list[Link]:
    """Return a link to the span that a `traceparent` names."""
    if not traceparent_value:
        return []
    context: SpanContext = trace.get_current_span(
        extract({"traceparent": traceparent_value})
    ).get_span_context()
    return [Link(context)] if context.is_valid else []
