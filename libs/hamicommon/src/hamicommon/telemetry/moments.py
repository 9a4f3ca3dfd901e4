"""Export times as metrics in Unix time, absent while unknown.

A gauge of the client that was never set shows 0, which is 1970: `time() - 0` would alarm forever.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class ShownCertificate(StrEnum):
    """Certificate whose expiry a service exports."""

    SERVING = "serving"
    """The service's own certificate, which clients see."""
    POSTGRES = "postgres"
    NATS = "nats"
    KUBERNETES = "kubernetes"


class Moment(Collector):
    """Gauge of a time, with at most one sample."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._seconds: float | None = None

    def set(self, at: datetime | float | None) -> None:
        """Set the time; None removes the sample."""
        self._seconds = at.timestamp() if isinstance(at, datetime) else at

    def collect(self) -> Iterator[Metric]:
        """Return the gauge for the registry."""
        yield GaugeMetricFamily(self._name, self._text, value=self._seconds)


class CertificateExpiry(Collector):
    """Gauge of the times at which certificates expire that a service presents or relies on."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._ends: dict[ShownCertificate, float] = {}

    def show(self, certificate: ShownCertificate, not_after: datetime | None) -> None:
        """Set the expiry of a certificate; None removes it (no TLS, or expiry unknown)."""
        if not_after is None:
            self._ends.pop(certificate, None)
        else:
            self._ends[certificate] = not_after.timestamp()

    def collect(self) -> Iterator[Metric]:
        """Return a sample for each known certificate."""
        family = GaugeMetricFamily(
            "hami_certificate_expiry_timestamp_seconds",
            "When a certificate expires (Unix time): the service's own (serving), that of a server "
            "it uses, or the authority that verifies that server; absent without TLS",
            labels=["service", "certificate"],
        )
        for certificate, end in sorted(self._ends.items()):
            family.add_metric([self._service, certificate.value], end)
        yield family
