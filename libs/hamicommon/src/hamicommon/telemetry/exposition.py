"""Render /metrics in the format that the scraper accepts.

In: a registry and the request's Accept. Out: OpenMetrics where it is asked for (Prometheus asks),
which alone carries exemplars, otherwise Prometheus's own text. Every service answers /metrics
with it.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, choose_encoder, generate_latest

OPENMETRICS = "application/openmetrics-text"


def exposition(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the text and its content type.

    Only the name is looked for in `accept`: who wants OpenMetrics gets version 1.0.0, and a
    header that is broken otherwise costs nobody the answer.
    """
    # OpenMetrics shows for each counter and histogram when it began, as a series more of each;
    # Prometheus sees a restart in the counter itself.
    disable_created_metrics()  # type: ignore[no-untyped-call] # the client has no annotation there
    named = (each.partition(";")[0].strip().lower() for each in accept.split(","))
    if OPENMETRICS in named:
        write, media_type = choose_encoder(f"{OPENMETRICS}; version=1.0.0")
        return write(registry), media_type
    return generate_latest(registry), CONTENT_TYPE_LATEST
