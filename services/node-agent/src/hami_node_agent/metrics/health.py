"""Metrics of the agent itself: cards' health, unreadable regions, failures, certificates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Protocol

from hamicommon.domain.devices import GpuDevice
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.telemetry.moments import CertificateExpiry, ShownCertificate
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hami_node_agent.allocation.late_binding_rules import BindingWay
from hami_node_agent.devices.health import HealthCause
from hami_node_agent.usage.regions.directory import Regions


class RegionCollector(Collector):
    """What could not be read or written of the containers' regions."""

    def __init__(self, regions: Regions) -> None:
        self._regions = regions

    def collect(self) -> Iterator[Metric]:
        """Failures since the start, and how many there are now."""
        failures = CounterMetricFamily(
            "hami_node_agent_region_failures",
            "Tries to read or write a container's region that failed, by kind",
            labels=["kind"],
        )
        for kind, count in sorted(self._regions.failures.items()):
            failures.add_metric([kind], count)
        yield failures
        yield GaugeMetricFamily(
            "hami_node_agent_unreadable_regions",
            "Containers whose region could not be read in the last round",
            value=self._regions.unreadable,
        )


class LeftoversNow(Protocol):
    """Directories of pods that are gone, as `HostFiles` has them."""

    @property
    def to_remove(self) -> int:
        """Those that are not removed yet."""

    @property
    def removal_failures(self) -> Mapping[str, int]:
        """Tries that failed since the start, by the system's error."""


class RemovalCollector(Collector):
    """What pods left behind."""

    def __init__(self, leftovers: LeftoversNow) -> None:
        self._leftovers = leftovers

    def collect(self) -> Iterator[Metric]:
        """How many wait, and what failed."""
        yield GaugeMetricFamily(
            "hami_node_agent_directories_to_remove",
            "Directories of containers that are gone, not removed yet",
            value=self._leftovers.to_remove,
        )
        failures = CounterMetricFamily(
            "hami_node_agent_removal_failures",
            "Tries to remove such a directory that failed, by error",
            labels=["error"],
        )
        for error, count in sorted(self._leftovers.removal_failures.items()):
            failures.add_metric([error], count)
        yield failures


class RestoredFiles(Protocol):
    """Files that were written again, as `FileRestorer` has them."""

    @property
    def restored(self) -> Mapping[str, int]:
        """How often since the start, by the file's name."""

    @property
    def problem(self) -> str:
        """Why one can't be; empty: all are as they should be."""


class RestoredFilesCollector(Collector):
    """What somebody else wrote to files that containers see."""

    def __init__(self, files: RestoredFiles) -> None:
        self._files = files

    def collect(self) -> Iterator[Metric]:
        """By name, and the one that can't be written again."""
        restored = CounterMetricFamily(
            "hami_node_agent_restored_files",
            "Files of containers that were others than written, and were written again, by name",
            labels=["what"],
        )
        for name, count in sorted(self._files.restored.items()):
            restored.add_metric([name], count)
        yield restored
        problem = GaugeMetricFamily(
            "hami_node_agent_file_problem",
            "1: a file that containers see can't be written, for this reason",
            labels=["reason"],
        )
        if self._files.problem:
            problem.add_metric([self._files.problem], 1)
        yield problem


class BulkheadCollector(Collector):
    """What single pods, cards and directories went wrong with."""

    def __init__(self, bulkhead: Bulkhead) -> None:
        self._bulkhead = bulkhead

    def collect(self) -> Iterator[Metric]:
        """By loop, since the start."""
        failures = CounterMetricFamily(
            "hami_node_agent_item_failures",
            "Unexpected failures of one pod, container or directory in a loop over many",
            labels=["loop"],
        )
        for loop, count in sorted(self._bulkhead.failures.items()):
            failures.add_metric([loop], count)
        yield failures


class BindingCollector(Collector):
    """How containers of the node get their slices, and why so."""

    def __init__(self, way: BindingWay) -> None:
        self._way = way

    def collect(self) -> Iterator[Metric]:
        """Always 1, with the way and the reason as labels."""
        binding = GaugeMetricFamily(
            "hami_node_agent_binding",
            "1: containers get their slices in this way, `late` or `lock`, for this reason",
            labels=["way", "reason"],
        )
        binding.add_metric(["late" if self._way.late else "lock", self._way.reason], 1)
        yield binding


class AuthorityCollector(Collector):
    """Until when the agent can verify the servers that it is a client of.

    It has no certificate of its own: it logs in to both with tokens.
    """

    def __init__(self, trusted_until: Mapping[str, Callable[[], datetime | None]]) -> None:
        """By server; None: not known yet, or no TLS."""
        self._trusted_until = trusted_until
        self._expiry = CertificateExpiry("hami-node-agent")

    def collect(self) -> Iterator[Metric]:
        """One sample for each server whose authority is known."""
        for server, until in self._trusted_until.items():
            self._expiry.show(ShownCertificate(server), until())
        yield from self._expiry.collect()


class CardsNow(Protocol):
    """The node's cards, as `cards.Cards` has them."""

    @property
    def xids_seen(self) -> Mapping[tuple[str, int, bool], int]:
        """XID events since the start by card, code, and whether they counted."""

    @property
    def health_changes(self) -> Mapping[tuple[str, HealthCause], int]:
        """How often each card fell sick or got well since the start, by cause."""

    def devices(self) -> tuple[GpuDevice, ...]:
        """All cards with their health."""


class CardCollector(Collector):
    """How the cards are, and what errors they reported."""

    def __init__(self, cards: CardsNow, *, node: str) -> None:
        self._cards = cards
        self._node = node

    def collect(self) -> Iterator[Metric]:
        """Health now, XID events since the start."""
        health = GaugeMetricFamily(
            "hami_node_agent_card_healthy",
            "1 while the card is healthy; else 0, with the reason",
            labels=["device_index", "device_uuid", "reason"],
        )
        for card in self._cards.devices():
            health.add_metric([str(card.index), card.uuid, card.health_reason], card.healthy)
        yield health
        changes = CounterMetricFamily(
            "hami_device_health_transitions",
            "How often the card fell sick or got well since the agent's start, by cause (xid, "
            "failed, unanswered, recovered)",
            labels=["node", "device_uuid", "cause"],
        )
        # From 0 on: the first change of a series that only then begins is no increase.
        seen = self._cards.health_changes
        for card in self._cards.devices():
            for cause in HealthCause:
                labels = [self._node, card.uuid, cause.value]
                changes.add_metric(labels, seen.get((card.uuid, cause), 0))
        yield changes
        xids = CounterMetricFamily(
            "hami_node_agent_xid_events",
            "XID events by card (empty: unknown); those that count made it sick",
            labels=["device_uuid", "xid", "counts"],
        )
        for (uuid, xid, counts), count in sorted(self._cards.xids_seen.items()):
            xids.add_metric([uuid, str(xid), str(counts).lower()], count)
        yield xids
