"""Pods that wait: one line for those of one owner that wait alike."""

from __future__ import annotations

from typing import Any

from hami_metrics.domain.redaction import EVERYBODY, PageViewer
from hami_metrics.pages.pending import pending_page

from tests.unit.metrics.pages.clusters import NOW, ago


def waiting(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "since_at": ago(minutes=60 - number),
        "pod_uid": f"u{number}",
        "namespace": "nlp",
        "pod_name": f"batch-{number}",
        "last_at": ago(seconds=3),
        "attempt_count": 3,
        "card_count": 1,
        "memory_bytes": 40 * 2**30,
        "memory_ratio": None,
        "core_ratio": 0.3,
        "reason_code": "CardInsufficientMemory",
        "summary": "no card has 40 GiB free",
        "ahead_count": number,
        **changes,
    }


def test_pods_of_one_owner_that_wait_alike_are_one_line() -> None:
    reasons = [{"reason_code": "CardInsufficientMemory", "pod_count": 4, "oldest_at": ago(hours=1)}]
    rows = [*(waiting(n) for n in range(3)), waiting(9, namespace="vision")]
    page = pending_page(reasons, rows, EVERYBODY, "", None, NOW)

    assert [(line.namespace, line.name, line.count) for line in page.lines] == [
        ("nlp", "batch-0", 3),
        ("vision", "batch-9", 1),
    ]
    assert page.lines[0].asks == "1 x 40 GiB 30 % cores"
    assert page.total == 4


def test_who_may_not_list_a_namespace_sees_what_waits_without_names_and_sentences() -> None:
    viewer = PageViewer(namespaces=frozenset())
    [line] = pending_page([], [waiting(1, summary="quota of nlp")], viewer, "", None, NOW).lines

    assert (line.namespace, line.name, line.pod_uid) == ("other", "", "")
    assert line.because == "CardInsufficientMemory"


def test_a_request_that_was_not_recorded_is_unknown() -> None:
    row = waiting(1, card_count=None, memory_bytes=None, core_ratio=None)
    assert pending_page([], [row], EVERYBODY, "", None, NOW).lines[0].asks == "?"


def test_pods_that_kube_scheduler_does_not_ask_about_still_wait_and_are_counted() -> None:
    rows = [waiting(1, last_at=ago(minutes=11)), waiting(2, last_at=ago(minutes=9))]
    page = pending_page([], rows, EVERYBODY, "", None, NOW)

    assert (page.not_asked, page.lines[0].count) == (1, 2)
