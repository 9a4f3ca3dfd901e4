"""Used share of the held time by namespace: weighted by time, and unknown stays unknown."""

from __future__ import annotations

from typing import Any

from hamicommon.ledger.showback import NamespaceUse, use_by_namespace


def a_row(namespace: str, slice_s: int = 3600, **changes: Any) -> dict[str, Any]:
    given = {
        "namespace": namespace,
        "slice_s": slice_s,
        "memory_bytes": 1000,
        "used_memory_bytes": 250,
        "core_ratio": 0.5,
        "used_core_ratio": 0.4,
        "sample_count": 12,
        "idle_s": 900,
    }
    return {**given, **changes}


def test_memory_is_the_measure_but_for_a_bill_by_cores() -> None:
    rows = [a_row("nlp")]

    assert use_by_namespace(rows, basis="memory") == {
        "nlp": NamespaceUse(used_ratio=0.25, idle_ratio=0.25)
    }
    assert use_by_namespace(rows, basis="cores")["nlp"].used_ratio == 0.8
    # A slice without a limit of cores is of no share of them.
    free = use_by_namespace([a_row("nlp", core_ratio=0.0)], basis="cores")
    assert free["nlp"].used_ratio is None


def test_several_namespaces_under_one_name_are_weighted_by_their_time() -> None:
    rows = [a_row("a", 3600, idle_s=2400), a_row("b", 1200, used_memory_bytes=1000, idle_s=1200)]

    found = use_by_namespace(rows, basis="memory", name_of=lambda _: "other")

    assert found == {"other": NamespaceUse(used_ratio=0.4375, idle_ratio=0.75)}


def test_what_was_not_measured_or_not_answered_is_unknown() -> None:
    unmeasured = a_row(
        "nlp", used_memory_bytes=None, used_core_ratio=None, sample_count=0, idle_s=None
    )

    assert use_by_namespace([unmeasured], basis="memory") == {"nlp": NamespaceUse()}
    assert use_by_namespace([a_row("nlp", idle_s=0)], basis="memory")["nlp"].idle_ratio == 0.0
    assert use_by_namespace(None, basis="memory") == {}


def test_idle_time_that_is_not_summed_up_yet_makes_that_of_all_under_its_name_unknown() -> None:
    rows = [a_row("a"), a_row("b", idle_s=None)]
    older = a_row("c")
    del older["idle_s"]

    apart = use_by_namespace([*rows, older], basis="memory")
    together = use_by_namespace(rows, basis="memory", name_of=lambda _: "other")

    assert {name: use.idle_ratio for name, use in apart.items()} == {
        "a": 0.25,
        "b": None,
        "c": None,
    }
    assert together["other"].idle_ratio is None
    assert together["other"].used_ratio == 0.25
