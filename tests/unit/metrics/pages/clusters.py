"""Clusters of a few cards, as one-line values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hami_metrics.pages.cluster import (
    CardHolder,
    MeasuredUse,
    PageCard,
    PageCluster,
    PageNode,
)

NOW = datetime(2026, 11, 20, 14, 5, tzinfo=UTC)


def ago(**parts: float) -> datetime:
    return NOW - timedelta(**parts)


def a_holder(name: str = "train-1", namespace: str = "nlp", memory_mib: int = 8192) -> CardHolder:
    return CardHolder(
        pod_uid=f"uid-{name}",
        namespace=namespace,
        pod_name=name,
        memory_mib=memory_mib,
        core_percent=30,
        state="allocated",
        since=NOW - timedelta(hours=1),
    )


def a_card(index: int = 0, node: str = "n1", *holders: CardHolder, **changes: Any) -> PageCard:
    given: dict[str, Any] = {
        "uuid": f"GPU-{node}-{index}",
        "node": node,
        "index": index,
        "type": "NVIDIA A100",
        "slots": 10,
        "memory_mib": 81920,
        "core_percent": 100,
        "used_slots": len(holders),
        "used_memory_mib": sum(one.memory_mib for one in holders),
        "used_core_percent": sum(one.core_percent for one in holders),
        "healthy": True,
        "health_reason": "",
        "cordoned": False,
        "holders": holders,
        **changes,
    }
    return PageCard(**given)


def a_node(name: str = "n1", *cards: PageCard, heard_s: float = 2.0, **changes: Any) -> PageNode:
    given: dict[str, Any] = {
        "name": name,
        "source": "agent",
        "heard_at": NOW - timedelta(seconds=heard_s),
        "cards": cards,
        **changes,
    }
    return PageNode(**given)


def a_state(*nodes: PageNode, use: dict[str, MeasuredUse] | None = None, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "version": 1,
        "taken_at": NOW,
        "nodes": {node.name: node for node in nodes},
        "use": use or {},
        **changes,
    }
    return PageCluster(**given)
