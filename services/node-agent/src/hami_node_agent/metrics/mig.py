"""Prometheus text of MIG instances that are made on demand; HAMi shows none of it.

In: `MigInstances`. What containers hold is shown as HAMi does (`collectors.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from hamicommon.domain.ids import GpuUuid
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hami_node_agent.devices.mig_partition import PartitionPlan
from hami_node_agent.metrics.collectors import ZONE


class InstancesSeen(Protocol):
    """What is known of made instances, as `MigInstances` has it."""

    @property
    def cards(self) -> Sequence[GpuUuid]:
        """The cards that could be asked at the last look."""

    @property
    def latest(self) -> PartitionPlan | None:
        """What the last look found; None when it failed."""

    @property
    def done(self) -> Mapping[tuple[str, str], int]:
        """How often what was done and how it ended."""


class MigCollector(Collector):
    """Makes metric families of the last look at every scrape."""

    def __init__(self, instances: InstancesSeen) -> None:
        self._instances = instances

    def collect(self) -> Iterator[Metric]:
        """Absent while the driver can't be asked."""
        done = CounterMetricFamily(
            "hami_node_agent_mig_changes",
            "MIG instances made and destroyed, by how it ended",
            labels=[ZONE[0], "change", "result"],
        )
        for (change, result), count in sorted(self._instances.done.items()):
            done.add_metric([ZONE[1], change, result], count)
        yield done
        latest = self._instances.latest
        if latest is None:
            return
        there = GaugeMetricFamily(
            "hami_node_agent_mig_instances",
            "MIG instances by state: held by a container, released and not yet destroyed, lost to "
            "a container that holds it, foreign: not made by this agent",
            labels=[ZONE[0], "device_uuid", "state"],
        )
        states = {
            "held": [each.card for each in latest.kept],
            "released": [each.card for each, _ in latest.destroy],
            "lost": [each.card for each in latest.lost],
            "foreign": [each.card for each in latest.foreign],
        }
        for card in self._instances.cards:
            for state, cards in states.items():
                there.add_metric([ZONE[1], card, state], cards.count(card))
        yield there
