"""What the use cases of one node share: its state, and the ports to everything around it."""

from __future__ import annotations

from dataclasses import dataclass

from hami_node_agent.grants.ports import ContainerFiles, GrantSource, KubeletState, NodePodApi
from hami_node_agent.grants.reports import Reports
from hami_node_agent.grants.state import NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePorts:
    """One node's."""

    state: NodeState
    kubelet_state: KubeletState
    source: GrantSource
    pods: NodePodApi
    files: ContainerFiles
    reports: Reports
