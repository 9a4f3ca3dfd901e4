"""Metrics of the webhook."""

from __future__ import annotations

from datetime import datetime

from hamicommon.telemetry.moments import CertificateExpiry, ShownCertificate
from prometheus_client import CollectorRegistry, Counter, Histogram

# A verdict takes well under a millisecond; past 5 s the API server has given up.
_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)


class WebhookInstruments:
    """Metrics in a registry of their own, so that tests can have several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reviews = Counter(
            "hami_webhook_reviews",
            "Reviews answered, by verdict (mutated, untouched, denied, failed, malformed), reason",
            ["verdict", "reason"],
            registry=self.registry,
        )
        self._children: dict[tuple[str, str], Counter] = {}
        self.review_seconds = Histogram(
            "hami_webhook_review_seconds",
            "Time from the complete request to the response",
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.events_dropped = Counter(
            "hami_webhook_events_dropped",
            "Refusals that could not be published",
            registry=self.registry,
        )
        self.certificates = CertificateExpiry("hami-webhook")
        self.registry.register(self.certificates)
        self.certificate_reloads = Counter(
            "hami_webhook_certificate_reloads",
            "Changes of the certificate files, by result: loaded, refused",
            ["result"],
            registry=self.registry,
        )

    def count_reload(self, result: str) -> None:
        """Count a reload of the certificate's files."""
        self.certificate_reloads.labels(result).inc()

    def show_expiry(self, not_after: datetime) -> None:
        """Set the expiry of the served certificate."""
        self.certificates.show(ShownCertificate.SERVING, not_after)

    def count(self, verdict: str, reason: str) -> None:
        """Count one review; verdict and reason come from small fixed sets."""
        child = self._children.get((verdict, reason))
        if child is None:
            child = self._children[verdict, reason] = self.reviews.labels(verdict, reason)
        child.inc()
