"""Records of decisions: stored and read again."""

from __future__ import annotations

from datetime import UTC, datetime

from hamicommon.domain.ids import NodeName
from hamicommon.domain.requests import DeviceRequest
from hamicommon.explain.record import DecisionRecord, detail_bytes, record_of, request_json
from hamicommon.placement.cluster.arrivals import Mix, PodShape
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide
from hamicommon.placement.node_policies import FRAGMENTATION
from hamicommon.placement.node_scores import NodeScores

from tests.unit.hamicommon.placement.clusters import card, pod, view_of

ONE = DeviceRequest(vendor="NVIDIA", count=1, memory_mib=1, core_percent=100)
TWO = DeviceRequest(vendor="NVIDIA", count=2, memory_mib=1, core_percent=100)


def stored_and_read(scores: NodeScores) -> DecisionRecord:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    request = pod(ONE, node=FRAGMENTATION, gpu=(FRAGMENTATION,))
    detail = detail_bytes(reasons={}, scores=scores, quota=None, moment=None, keep_counters=True)
    row = {
        "shortfalls": detail,
        "request": request_json(request),
        "policy": {"node": FRAGMENTATION, "gpu": [FRAGMENTATION]},
        **dict.fromkeys(("pod_uid", "namespace", "pod_name", "message", "summary", "trace_id"), ""),
        **dict.fromkeys(("candidates", "repeat_count", "view_version"), 1),
        **dict.fromkeys(("at", "detail_at", "last_at"), now),
        "outcome": "placed",
        "node": "b",
    }
    return record_of(row, inventory=None, counters=None, new_view=ClusterView)


def test_the_price_of_whole_nodes_is_kept_apart_from_what_is_stranded() -> None:
    view = view_of({"a": [card("a0"), card("a1", index=1)], "b": [card("b0")]})
    view.usual.give(Mix.of([PodShape(request=ONE)] * 5 + [PodShape(request=TWO)] * 5))
    scores = decide(pod(ONE, node=FRAGMENTATION, gpu=(FRAGMENTATION,)), view).scores

    parts = stored_and_read(scores).parts
    assert parts == scores.parts()
    # Two cards together are a place for a pod that wants both; the lone card is none.
    assert 500 < parts[NodeName("a")].whole_nodes_milli <= 2000
    assert parts[NodeName("b")].whole_nodes_milli == 0


def test_scores_of_usage_have_no_parts() -> None:
    assert stored_and_read(NodeScores.of({NodeName("a"): 3.5})).parts == {}
