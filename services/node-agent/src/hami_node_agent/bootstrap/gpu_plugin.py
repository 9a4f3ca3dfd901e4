"""Construct the device plugin of slices."""

from __future__ import annotations

from pathlib import PurePosixPath

from hami_node_agent.allocation.allocate import Allocate
from hami_node_agent.allocation.binding_way import BindingWay
from hami_node_agent.allocation.late_binding import LateBinding
from hami_node_agent.allocation.node_ports import DescribedSlices, NodePorts
from hami_node_agent.allocation.prestart import PreStart
from hami_node_agent.allocation.response import AnswerPolicy
from hami_node_agent.bootstrap.connections import CONTAINER_BASE, AgentConnections
from hami_node_agent.bootstrap.mig import with_instances
from hami_node_agent.config.settings import Settings
from hami_node_agent.deviceplugin.gpu_plugin import Plugin
from hami_node_agent.devices.device_list import MpsPolicy
from hami_node_agent.devices.mig_partition import MIG
from hami_node_agent.devices.offer import WHOLE
from hami_node_agent.grants.feed import GrantsFeed
from hami_node_agent.grants.reports import Reports
from hami_node_agent.inventory.mig_instances import MigInstances
from hami_node_agent.inventory.tracker import CardTracker


def plugin_of(
    settings: Settings,
    connections: AgentConnections,
    cards: CardTracker,
    feed: GrantsFeed,
    reports: Reports,
    way: BindingWay,
    mig: MigInstances | None = None,
) -> Plugin:
    """Create the plugin of this node's cards.

    `way`: whether containers are bound by CDI at their start, see `late_binding.py`. `mig`: their
    cards are cut for them.
    """
    node = node_ports(connections, feed, reports)
    answers = with_instances(answers_of(settings, connections), settings, connections)
    slices = DescribedSlices(node, devices=connections.cdi, answers=answers)
    late = LateBinding(
        node,
        slices=slices,
        is_used=way.late,
        named_by=way.named_by,
        unproven="" if way.late or settings.binding == "lock" else way.reason,
        mig=mig,
    )
    return Plugin(
        cards=cards,
        allocating=Allocate(node, slices=slices, node_name=settings.node_name, mig=mig),
        prestarting=PreStart(node, slices=slices, late=late, mig=mig),
        late=late,
        numa_topology=settings.enable_numa_topology,
        preferred_allocation=not way.late,
    )


def node_ports(connections: AgentConnections, feed: GrantsFeed, reports: Reports) -> NodePorts:
    """Return the interfaces to the node that the use cases share."""
    return NodePorts(
        state=connections.state,
        kubelet_state=connections.kubelet_state,
        source=feed,
        pods=connections.pods,
        files=connections.files,
        reports=reports,
    )


def answers_of(settings: Settings, connections: AgentConnections) -> AnswerPolicy:
    """Return the settings that affect every answer."""
    return AnswerPolicy(
        container_base=CONTAINER_BASE,
        host_base=PurePosixPath(connections.files.base),
        library=PurePosixPath(connections.library),
        enforced=settings.operating_mode not in (WHOLE, MIG),
        # With another scaling a card's memory is not the granted one, or only the library makes it
        # so.
        may_be_plain=(
            settings.operating_mode == "hami-core" and settings.device_memory_scaling == 1
        ),
        whole_cards_plain=settings.whole_cards == "plain",
        mps=_mps_policy(settings),
        oversubscribe=settings.device_memory_scaling > 1,
        log_level=settings.libcuda_log_level,
        disable_core_limit=settings.disable_core_limit,
        allow_disable_control=settings.allow_disable_control,
        licensed=(connections.files.base / "license").exists(),
        devices=connections.driver.devices,
    )


def _mps_policy(settings: Settings) -> MpsPolicy | None:
    if settings.operating_mode != "mps":
        return None
    shm_dir = "" if settings.mps_shm_dir is None else str(settings.mps_shm_dir)
    return MpsPolicy(pipe_dir=str(settings.mps_dir / "pipe"), shm_dir=shm_dir)
