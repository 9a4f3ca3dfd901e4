"""Construct the monitor: regions, samples, feedback loop, limits and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

from hamicommon.domain.pod_ref import PodRef
from hamicommon.process.bulkhead import Bulkhead

from hami_node_agent.adapters.host.processes import HostProcesses
from hami_node_agent.bootstrap.connections import DISTRIBUTION, AgentConnections
from hami_node_agent.config.settings import Settings
from hami_node_agent.enforcement.checker import (
    CheckPolicy,
    LimitChecker,
    LimitPublisher,
    plain_samples,
)
from hami_node_agent.enforcement.periods import Timing
from hami_node_agent.grants.ports import MigDevice
from hami_node_agent.inventory.tracker import CardTracker
from hami_node_agent.metrics.collectors import Families, NodeCollector
from hami_node_agent.metrics.health import card_families, region_families
from hami_node_agent.metrics.legacy import LegacyCollector
from hami_node_agent.metrics.limits import LimitCollector
from hami_node_agent.usage.feedback import Feedback, LimitsWriter
from hami_node_agent.usage.monitor import Monitor, Owners
from hami_node_agent.usage.regions.reader import Regions
from hami_node_agent.usage.sampler import FirstKernels, Observation, Sampler, UsagePublisher


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageWiring:
    """Parts of usage monitoring that others run and show."""

    loops: Mapping[str, Coroutine[object, object, None]]
    metrics: tuple[Families, ...]
    usage: UsagePublisher


def monitoring(
    settings: Settings,
    connections: AgentConnections,
    cards: CardTracker,
    *,
    mig_devices: Callable[[], Sequence[MigDevice]],
    bulkhead: Bulkhead,
) -> UsageWiring:
    """Return the monitor of one node, not yet running."""
    probe, pods = connections.driver.probe, connections.pods
    regions = Regions(connections.files.base / "containers", bulkhead=bulkhead)
    proc = settings.proc_root
    monitor = Monitor(
        probe,
        regions,
        Owners(connections.state, pods),
        processes=None if proc is None else HostProcesses(proc),
        bulkhead=bulkhead,
    )
    limits_writer = LimitsWriter(connections.files, bulkhead=bulkhead)
    usage = UsagePublisher(connections.bus, node=settings.node_name, agent_id=connections.agent_id)
    sampler = Sampler(
        probe,
        monitor,
        usage,
        limits_writer=limits_writer,
        interval_s=settings.sample_interval_s,
        first_kernels=FirstKernels(lambda uid: connections.state.book.of(uid)),
        without_region=lambda: plain_samples(
            connections.state.saved.records.values(), checker.checked
        ),
        bulkhead=bulkhead,
    )

    def latest() -> Observation:
        return sampler.latest

    checker = LimitChecker(
        monitor,
        connections.state,
        pods,
        connections.kubelet_state,
        policy=_check_policy(settings),
        devices=lambda: sampler.latest.devices,
        bulkhead=bulkhead,
    )
    name_of = _names(connections)
    limits = LimitPublisher(
        checker,
        connections.bus,
        name_of,
        node=settings.node_name,
        agent_id=connections.agent_id,
    )
    node, slices = settings.node_name, mig_devices
    stale_s = 3 * settings.sample_interval_s
    metrics: list[Families] = [
        NodeCollector(latest, slices, node=node, version=version(DISTRIBUTION)).collect,
        partial(region_families, regions),
        partial(card_families, cards, node=node),
        LimitCollector(lambda: checker.checked, name_of, stale_s=stale_s).collect,
    ]
    if settings.legacy_metrics:
        metrics.append(LegacyCollector(latest, slices, node=node).collect)
    return UsageWiring(
        loops={
            "usage": sampler.run(),
            "feedback": Feedback(monitor, pods, limits_writer, bulkhead=bulkhead).run(),
            "limits": limits.run(),
        },
        metrics=tuple(metrics),
        usage=usage,
    )


def _check_policy(settings: Settings) -> CheckPolicy:
    return CheckPolicy(
        timing=Timing(
            grace_s=settings.enforcement_grace_s, gap_s=max(30.0, 4 * settings.sample_interval_s)
        ),
        exempt_namespaces=frozenset(settings.enforcement_exempt_namespaces),
        controlled=settings.operating_mode in ("hami-core", "mps"),
    )


def _names(connections: AgentConnections) -> Callable[[str], PodRef | None]:
    """Return a function that names pods, also former ones that records still name."""

    def name_of(pod_uid: str) -> PodRef | None:
        known = connections.pods.name_of(pod_uid)
        if known is not None:
            return known
        for record in connections.state.saved.of_pod(pod_uid):
            if record.pod_name:
                return PodRef(uid=record.pod_uid, namespace=record.namespace, name=record.pod_name)
        return None

    return name_of
