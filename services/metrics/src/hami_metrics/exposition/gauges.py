"""A family of gauges, with HAMi's constant label or without; the labels of a card. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from hami_metrics.domain.cluster import ClusterCard

ZONE = "vGPU"
CARD = ("node", "device_uuid", "device_index", "device_type")
MIB = 1024 * 1024

Samples = Iterable[tuple[Sequence[str], float]]


def card_labels(card: ClusterCard) -> tuple[str, str, str, str]:
    """Return the values of the labels `CARD`."""
    return (card.node, card.uuid, str(card.index), card.type)


def zoned_gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """With HAMi's label `zone` before the others."""
    zoned = [((ZONE, *values), value) for values, value in samples]
    return gauge(name, text, ("zone", *labels), zoned)


def gauge(name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """`samples`: values of the labels, and the sample's."""
    family = GaugeMetricFamily(name, text, labels=list(labels))
    for values, value in samples:
        family.add_metric(list(values), value)
    return family
