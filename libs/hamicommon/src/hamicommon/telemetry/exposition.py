"""Render /metrics in the format that the scraper accepts.

Input: a registry and the request's Accept header. The result is OpenMetrics if the client accepts
it (Prometheus does), because only it carries exemplars; otherwise Prometheus's own text. Every
service uses it for /metrics.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, choose_encoder, generate_latest

OPENMETRICS = "application/openmetrics-text"


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the text and its content type.

    Only the name is searched for in `accept`: a client that wants OpenMetrics gets version 1.0.0,
    and a header that is otherwise malformed does not prevent the answer.
    """
    # OpenMetrics shows the start time of each counter and histogram as an extra series; Prometheus
    # detects a restart from the counter itself.
    disable_created_metrics()  # type: ignore[no-untyped-call] # the client has no annotation there
    named = (each.partition(";")[0].strip().lower() for each in accept.split(","))
    if OPENMETRICS in named:
        write, media_type = choose_encoder(f"{OPENMETRICS}; version=1.0.0")
        return write(registry), media_type
    return generate_latest(registry), CONTENT_TYPE_LATEST
