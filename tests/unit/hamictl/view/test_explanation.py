"""Explain in words: where a pod is, or why it waits."""

from typing import Any

from hamictl.view.explanation import explanation
from hamictl.view.tables import cores, health, memory


def a_decision(**changes: Any) -> dict[str, Any]:
    return {
        "outcome": "refused",
        "at": "2026-11-20T10:00:00Z",
        "last_at": "2026-11-20T10:05:00Z",
        "repeat_count": 1,
        "message": "no available node, 1 nodes do not meet",
        "node": None,
        "node_reasons": {"node-0": "4/4 CardInsufficientMemory"},
        "trace_id": "abc",
    } | changes


def test_a_refused_pod_shows_every_nodes_reason() -> None:
    lines = list(explanation({"decisions": [a_decision()]}, name="ns/p"))

    assert lines[0] == "ns/p fits nowhere, decided at 2026-11-20T10:00:00:"
    assert "  node-0: 4/4 CardInsufficientMemory" in lines
    assert lines[-1] == "  trace abc"


def test_a_repeated_refusal_says_how_often_and_until_when() -> None:
    lines = list(explanation({"decisions": [a_decision(repeat_count=8)]}, name="p"))

    assert "and 7 more times until 2026-11-20T10:05:00" in lines[0]


def test_many_nodes_are_counted_beyond_the_first_ones() -> None:
    reasons = {f"node-{number:03}": "node unregistered" for number in range(50)}

    lines = list(explanation({"decisions": [a_decision(node_reasons=reasons)]}, name="p"))

    assert "  and 30 more nodes" in lines


def test_a_placed_pod_shows_its_slices() -> None:
    share = {"container": "c", "memory_mib": 4096, "core_percent": 30, "device_uuid": "GPU-1"}
    allocation = {"node": "node-0", "state": "allocated", "devices": [share]}

    lines = list(explanation({"allocation": allocation, "decisions": []}, name="p"))

    assert lines == [
        "p holds slices on node-0 (allocated):",
        "  c: 4096 MiB, 30 % cores of GPU-1",
    ]


def test_a_pod_nobody_decided_about_is_said_so() -> None:
    [line] = explanation({"decisions": []}, name="p")

    assert "no decision has been made yet" in line


def test_unknown_is_shown_as_unknown_and_amounts_as_people_say_them() -> None:
    assert (memory(None), memory(512), memory(4096), memory(6000)) == (
        "?",
        "512 MiB",
        "4 GiB",
        "5.859 GiB",
    )
    assert (cores(0), cores(30)) == ("any cores", "30 % cores")
    assert health({"healthy": False, "health_reason": "XID 79"}) == "sick: XID 79"
