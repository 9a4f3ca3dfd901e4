"""What of the held time was used, by namespace: means weighted by time, and unknown is unknown."""

from __future__ import annotations

from typing import Any

from hamicommon.ledger.showback.use import NamespaceUse, use_by_namespace


def a_row(namespace: str, slice_s: int = 3600, **changes: Any) -> dict[str, Any]:
    given = {
        "namespace": namespace,
        "slice_s": slice_s,
        "memory_bytes": 1000,
        "used_memory_bytes": 250,
        "core_ratio": 0.5,
        "used_core_ratio": 0.4,
        "sample_count": 12,
    }
    return {**given, **changes}


def test_memory_is_the_measure_but_for_a_bill_by_cores() -> None:
    rows, idle = [a_row("nlp")], [{"namespace": "nlp", "idle_s": 900}]

    assert use_by_namespace(rows, idle, basis="memory") == {
        "nlp": NamespaceUse(used_ratio=0.25, idle_ratio=0.25)
    }
    assert use_by_namespace(rows, idle, basis="cores")["nlp"].used_ratio == 0.8
    # A slice without a limit of cores is of no share of them.
    free = use_by_namespace([a_row("nlp", core_ratio=0.0)], idle, basis="cores")
    assert free["nlp"].used_ratio is None


def test_several_namespaces_under_one_name_are_weighted_by_their_time() -> None:
    rows = [a_row("a", 3600), a_row("b", 1200, used_memory_bytes=1000)]
    idle = [{"namespace": "a", "idle_s": 2400}, {"namespace": "a", "idle_s": 1200}]

    found = use_by_namespace(rows, idle, basis="memory", name_of=lambda _: "other")

    assert found == {"other": NamespaceUse(used_ratio=0.4375, idle_ratio=0.75)}


def test_what_was_not_measured_or_not_answered_is_unknown() -> None:
    unmeasured = a_row("nlp", used_memory_bytes=None, used_core_ratio=None, sample_count=0)

    assert use_by_namespace([unmeasured], [], basis="memory") == {"nlp": NamespaceUse()}
    assert use_by_namespace([a_row("nlp")], None, basis="memory")["nlp"].idle_ratio is None
    assert use_by_namespace([a_row("nlp")], [], basis="memory")["nlp"].idle_ratio == 0.0
    assert use_by_namespace(None, None, basis="memory") == {}
