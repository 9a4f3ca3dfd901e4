"""The watch's view of the node's pods is computed again when one of them changes."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock

from hami_node_agent.adapters.kubernetes.pods import NodePods
from hami_node_agent.grants.records import PodsSeen
from hamicommon.domain.ids import PodUid


def a_pod(uid: str, phase: str) -> dict[str, Any]:
    return {
        "metadata": {"uid": uid, "namespace": "ns", "name": uid},
        "status": {"phase": phase},
    }


def a_seen(*, ended: str = "", bound: str = "") -> PodsSeen:
    return PodsSeen(ended=frozenset(map(PodUid, ended)), bound=frozenset(map(PodUid, bound)))


def test_pods_come_end_and_go() -> None:
    api: Any = AsyncMock()
    pods = NodePods(api, node="n", resource="nvidia.com/gpu", key=None)
    seen = [pods.snapshot()]
    for uid, phase in (("a", "Pending"), ("b", "Running"), ("b", "Succeeded")):
        pods._on_upsert(a_pod(uid, phase), None)
        seen.append(pods.snapshot())
    pods._on_delete(a_pod("a", "Running"))
    seen.append(pods.snapshot())

    assert seen == [
        a_seen(),
        a_seen(bound="a"),
        a_seen(bound="ab"),
        a_seen(bound="ab", ended="b"),
        a_seen(bound="b", ended="ab"),
    ]


def test_while_nothing_changes_the_answer_is_the_same_one() -> None:
    api: Any = AsyncMock()
    pods = NodePods(api, node="n", resource="nvidia.com/gpu", key=None)
    pods._on_upsert(a_pod("a", "Running"), None)

    assert pods.snapshot() is pods.snapshot()
