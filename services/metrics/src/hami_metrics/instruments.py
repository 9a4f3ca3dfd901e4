"""Metrics of the service itself, served on /metrics with the ledger's."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from hamicommon.process.bulkhead import Bulkhead
from hamicommon.telemetry.moments import CertificateExpiry, Moment, ShownCertificate
from prometheus_client import CollectorRegistry, Counter, Gauge


class MetricsInstruments:
    """Metrics in a registry of their own, so that tests can have several."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.samples = Counter(
            "hami_usage_samples",
            "Usage samples by result: stored, repeated, ungranted (of a pod without a grant there)",
            ["result"],
            registry=self.registry,
        )
        for result in ("stored", "repeated", "ungranted"):
            self.samples.labels(result)
        self.last_ingest = Moment(
            "hami_usage_last_ingest_timestamp_seconds",
            "When the last usage report was stored (Unix time); absent before the first",
        )
        self.registry.register(self.last_ingest)
        self.lost_reports = Counter(
            "hami_metrics_usage_reports_lost",
            "Usage reports that never arrived (gaps in an agent's numbering)",
            registry=self.registry,
        )
        self.missing_reports = Gauge(
            "hami_metrics_usage_reports_missing",
            "Usage reports that are late and may still arrive",
            registry=self.registry,
        )
        self.refusals = Counter(
            "hami_metrics_admission_refusals",
            "Refusals at admission by result: stored, repeated",
            ["result"],
            registry=self.registry,
        )
        self.store_failures = Counter(
            "hami_metrics_store_failures",
            "Writes that Postgres refused, by kind; the reports wait on the bus",
            ["what"],
            registry=self.registry,
        )
        self.rollups = Counter(
            "hami_metrics_rollups", "Buckets rolled up", ["bucket"], registry=self.registry
        )
        self.unsummed_buckets = Gauge(
            "hami_metrics_unsummed_buckets",
            "Finished buckets of nodes that are not rolled up yet",
            registry=self.registry,
        )
        self.snapshot_age = Gauge(
            "hami_metrics_snapshot_age_seconds",
            "Age of the last reading of the ledger; NaN before the first",
            registry=self.registry,
        )
        self.bus_connected = Gauge(
            "hami_metrics_bus_connected",
            "1 while the connection to NATS is healthy",
            registry=self.registry,
        )
        self.certificates = CertificateExpiry("hami-metrics")
        self.registry.register(self.certificates)
        self.loop_errors = Counter(
            "hami_metrics_loop_errors",
            "Unexpected errors of one bucket or one round of a background loop",
            ["loop"],
            registry=self.registry,
        )
        self.bulkhead = Bulkhead(lambda loop: self.loop_errors.labels(loop).inc())

    def show_expiry(self, server: str, not_after: datetime | None) -> None:
        """Set the expiry of a server's certificate; None: it has no TLS."""
        self.certificates.show(ShownCertificate(server), not_after)

    def watch_state(
        self, snapshot_age_s: Callable[[], float], bus_connected: Callable[[], bool]
    ) -> None:
        """Set the functions from which two gauges read their values at each scrape."""
        self.snapshot_age.set_function(snapshot_age_s)
        self.bus_connected.set_function(lambda: float(bus_connected()))
