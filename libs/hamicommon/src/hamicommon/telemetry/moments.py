"""Moments as metrics: Unix time, and absent while there is none.

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
    """Certificate whose end a service shows."""

    SERVING = "serving"
    """Service's own certificate, which clients see."""
    POSTGRES = "postgres"
    NATS = "nats"
    KUBERNETES = "kubernetes"


class Moment(Collector):
    """One gauge with at most one sample."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._seconds: float | None = None

    def set(self, at: datetime | float | None) -> None:
        """When it was, in Unix time where it is a number; None: there is none."""
        self._seconds = at.timestamp() if isinstance(at, datetime) else at

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        yield GaugeMetricFamily(self._name, self._text, value=self._seconds)


class CertificateExpiry(Collector):
    """When the certificates expire that a service presents or relies on."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._ends: dict[ShownCertificate, float] = {}

    def show(self, certificate: ShownCertificate, not_after: datetime | None) -> None:
        """Until when it holds; None: there is no TLS, or it is not known yet."""
        if not_after is None:
            self._ends.pop(certificate, None)
        else:
            self._ends[certificate] = not_after.timestamp()

    def collect(self) -> Iterator[Metric]:
        """One sample for each certificate that is known."""
        family = GaugeMetricFamily(
            "hami_certificate_expiry_timestamp_seconds",
            "When a certificate expires (Unix time): the service's own (serving), that of a server "
            "it uses, or the authority that verifies that server; absent without TLS",
            labels=["service", "certificate"],
        )
        for certificate, end in sorted(self._ends.items()):
            family.add_metric([self._service, certificate.value], end)
        yield family
