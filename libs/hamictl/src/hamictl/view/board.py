"""The live board of `hamictl up`: nodes, cards, slices and pods, and where to look next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.text import Text

from hamictl.view import cluster_state, tables
from hamictl.view.cluster_state import ClusterSummary


def board(state: ClusterSummary, described: Mapping[str, Any]) -> Group:
    """One screen."""
    parts: list[Any] = [
        tables.nodes_table(cluster_state.node_rows(state)),
        tables.devices_table(state.devices or (), short=True),
        tables.pods_table(cluster_state.pod_rows(state)),
    ]
    parts += [Text(f"not asked: {missing}", style="yellow") for missing in state.missing]
    parts.append(Text(look_next(described), style="dim"))
    return Group(*parts)


def look_next(described: Mapping[str, Any]) -> str:
    """What to type now."""
    return "\n".join(
        (
            f"pages   {described['pages_url']}   (this machine alone)",
            f"kubectl --kubeconfig {described['kubeconfig']} get pods -w",
            "hamictl explain too-much        why a pod waits",
            "hamictl history one-slice       what happened to its slices",
            "hamictl sql 'select * from allocations_at(now())'",
            f"metrics {described['metrics_url']}   traces {described['traces']}",
        )
    )
