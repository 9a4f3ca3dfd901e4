"""Metrics of the agent: cards' health, MIG instances, files, failures, certificates.

HAMi exports none of them; `collectors.py` has the use of containers and cards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Protocol

from hamicommon.process.bulkhead import Bulkhead
from hamicommon.telemetry.moments import CertificateExpiry, ShownCertificate
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from hami_node_agent.allocation.binding_way import BindingWay
from hami_node_agent.cleanup.installed_files import FileRestorer
from hami_node_agent.devices.health import HealthCause
from hami_node_agent.inventory.mig_instances import MigInstances
from hami_node_agent.inventory.tracker import CardTracker
from hami_node_agent.metrics.collectors import ZONE
from hami_node_agent.usage.regions.reader import Regions


def _by_label(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family


def region_families(regions: Regions) -> Iterator[Metric]:
    """Yield failures to read or write containers' regions, since the start and present ones."""
    yield _by_label(
        "hami_node_agent_region_failures",
        "Failed attempts to read or write a container's region, by kind",
        "kind",
        regions.failures,
    )
    yield GaugeMetricFamily(
        "hami_node_agent_unreadable_regions",
        "Containers whose region could not be read in the last round",
        value=len(regions.problems),
    )


class Leftovers(Protocol):
    """Folders of pods that left."""

    @property
    def to_remove(self) -> int:
        """Number of folders that are not removed yet."""

    @property
    def removal_failures(self) -> Mapping[str, int]:
        """Number of failed removals since the start, by the system's error."""


def removal_families(leftovers: Leftovers) -> Iterator[Metric]:
    """Yield the number of folders to remove, and failures."""
    yield GaugeMetricFamily(
        "hami_node_agent_directories_to_remove",
        "Directories of ended containers that are not removed yet",
        value=leftovers.to_remove,
    )
    yield _by_label(
        "hami_node_agent_removal_failures",
        "Failed attempts to remove such a directory, by error",
        "error",
        leftovers.removal_failures,
    )


def file_families(files: FileRestorer) -> Iterator[Metric]:
    """Yield the number of rewritten files, and whether one can't be written."""
    yield _by_label(
        "hami_node_agent_restored_files",
        "Files of containers that were changed and have been restored, by name",
        "what",
        files.restored,
    )
    problem = GaugeMetricFamily(
        "hami_node_agent_file_problem",
        "1 if a file that containers read can't be written, with the reason",
        labels=["reason"],
    )
    if files.problem:
        problem.add_metric([files.problem], 1)
    yield problem


def bulkhead_families(bulkhead: Bulkhead) -> Iterator[Metric]:
    """Yield failures isolated per pod, card and folder since the start, by loop."""
    yield _by_label(
        "hami_node_agent_item_failures",
        "Unexpected failures of one pod, container or directory in a loop over many",
        "loop",
        bulkhead.failures,
    )


def binding_families(way: BindingWay) -> Iterator[Metric]:
    """Yield the way of binding, with its reason."""
    binding = GaugeMetricFamily(
        "hami_node_agent_binding",
        "1 for the binding mode of the node, `late` or `lock`, with the reason",
        labels=["way", "reason"],
    )
    binding.add_metric(["late" if way.late else "lock", way.reason], 1)
    yield binding


def authority_families(
    trusted_until: Mapping[str, Callable[[], datetime | None]],
) -> Iterator[Metric]:
    """Yield the time until which the agent can verify its servers.

    It has no certificate of its own: it logs in to both with tokens. `trusted_until`: by server;
    None: not known yet, or no TLS.
    """
    expiry = CertificateExpiry("hami-node-agent")
    for server, until in trusted_until.items():
        expiry.show(ShownCertificate(server), until())
    yield from expiry.collect()


def card_families(cards: CardTracker, *, node: str) -> Iterator[Metric]:
    """Yield the cards' present health, and their errors since the start."""
    health = GaugeMetricFamily(
        "hami_node_agent_card_healthy",
        "1 while the card is healthy, otherwise 0, with the reason",
        labels=["device_index", "device_uuid", "reason"],
    )
    changes = CounterMetricFamily(
        "hami_device_health_transitions",
        "Changes of the card between healthy and unhealthy since the agent's start, by cause (xid, "
        "failed, unanswered, recovered)",
        labels=["node", "device_uuid", "cause"],
    )
    # From 0 on: the first change of a series that only then begins is no increase.
    seen = cards.health_changes
    for card in cards.devices():
        health.add_metric([str(card.index), card.uuid, card.health_reason], card.healthy)
        for cause in HealthCause:
            changes.add_metric([node, card.uuid, cause.value], seen.get((card.uuid, cause), 0))
    yield health
    yield changes
    xids = CounterMetricFamily(
        "hami_node_agent_xid_events",
        "XID events by card (empty: unknown); those with counts=true made it unhealthy",
        labels=["device_uuid", "xid", "counts"],
    )
    for (uuid, xid, counts), count in sorted(cards.xids_seen.items()):
        xids.add_metric([uuid, str(xid), str(counts).lower()], count)
    yield xids


def mig_families(instances: MigInstances) -> Iterator[Metric]:
    """Yield MIG instances of the last check; none while the driver does not answer."""
    done = CounterMetricFamily(
        "hami_node_agent_mig_changes",
        "MIG instances created and destroyed, by result",
        labels=[ZONE[0], "change", "result"],
    )
    for (change, result), count in sorted(instances.done.items()):
        done.add_metric([ZONE[1], change, result], count)
    yield done
    latest = instances.latest
    if latest is None:
        return
    there = GaugeMetricFamily(
        "hami_node_agent_mig_instances",
        "MIG instances by state: held by a container, released and not yet destroyed, lost to "
        "a container that holds it, foreign: not created by this agent",
        labels=[ZONE[0], "device_uuid", "state"],
    )
    states = {
        "held": [each.card for each in latest.kept],
        "released": [each.card for each, _ in latest.destroy],
        "lost": [each.card for each in latest.lost],
        "foreign": [each.card for each in latest.foreign],
    }
    for card in instances.cards:
        for state, held in states.items():
            there.add_metric([ZONE[1], card, state], held.count(card))
    yield there
