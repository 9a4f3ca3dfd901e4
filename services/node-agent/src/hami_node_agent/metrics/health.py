"""Metrics of the agent itself: cards' health, MIG instances, files, failures, certificates.

HAMi shows none of them; what containers and cards use is in `collectors.py`.
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
    """Failures to read or write the containers' regions since the start, and how many now."""
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
    """Directories of pods that are gone, as `HostFiles` has them."""

    @property
    def to_remove(self) -> int:
        """Number of those that are not removed yet."""

    @property
    def removal_failures(self) -> Mapping[str, int]:
        """Try that failed since the start, by the system's error."""


def removal_families(leftovers: Leftovers) -> Iterator[Metric]:
    """Directories that pods left behind: how many wait, and what failed."""
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
    """Changes by others to files that containers see, and the one that can't be written again."""
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
    """Failures isolated per pod, card and directory since the start, by loop."""
    yield _by_label(
        "hami_node_agent_item_failures",
        "Unexpected failures of one pod, container or directory in a loop over many",
        "loop",
        bulkhead.failures,
    )


def binding_families(way: BindingWay) -> Iterator[Metric]:
    """Mode in which containers of the node get their slices, and its reason."""
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
    """Time until which the agent can verify the servers that it is a client of.

    It has no certificate of its own: it logs in to both with tokens. `trusted_until`: by server;
    None: not known yet, or no TLS.
    """
    expiry = CertificateExpiry("hami-node-agent")
    for server, until in trusted_until.items():
        expiry.show(ShownCertificate(server), until())
    yield from expiry.collect()


def card_families(cards: CardTracker, *, node: str) -> Iterator[Metric]:
    """Health of the cards now, and the errors that they reported since the start."""
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
    """MIG instances as the last look found them; absent while the driver can't be asked."""
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
