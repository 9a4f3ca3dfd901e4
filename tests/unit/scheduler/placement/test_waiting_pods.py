"""Has kube-scheduler given a pod up since it was at /filter?"""

from __future__ import annotations

from typing import Any

import pytest
from hami_scheduler.placement.waiting_pods import WaitingPod, WaitingPods
from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import PodRequest

REQUEST = PodRequest(uid=PodUid("u"), namespace="d", name="p", containers=())


def pod(version: int, *, refused_at: str | None = None) -> dict[str, Any]:
    conditions = (
        []
        if refused_at is None
        else [{"type": "PodScheduled", "status": "False", "lastTransitionTime": refused_at}]
    )
    return {
        "metadata": {"uid": "u", "resourceVersion": str(version)},
        "status": {"conditions": conditions},
    }


@pytest.mark.parametrize(
    ("seen", "now", "given_up"),
    [
        pytest.param(pod(1), pod(2, refused_at="t1"), True, id="refused-since"),
        pytest.param(pod(5, refused_at="t1"), pod(6, refused_at="t1"), False, id="old-verdict"),
        pytest.param(pod(5), pod(4, refused_at="t1"), False, id="older-object"),
        pytest.param(pod(5, refused_at="t1"), pod(6, refused_at="t2"), True, id="new-verdict"),
        pytest.param(pod(1), pod(2), False, id="no-verdict"),
    ],
)
def test_only_a_new_verdict_on_a_newer_pod_counts(
    seen: dict[str, Any], now: dict[str, Any], given_up: bool
) -> None:
    waiting = WaitingPods()
    waiting.note_visit(seen, REQUEST)

    assert waiting.is_given_up_since(now) is given_up


def test_a_pod_that_never_came_was_not_given_up() -> None:
    assert not WaitingPods().is_given_up_since(pod(2, refused_at="t"))


def a_waiting_pod(uid: str, created: str = "1", priority: int = 0) -> WaitingPod:
    return WaitingPod(
        uid=PodUid(uid),
        namespace="d",
        name=uid,
        created_at=created,
        priority=priority,
        request=REQUEST,
    )


def test_the_order_is_priority_then_age() -> None:
    waiting = WaitingPods()
    for uid, created, priority in (("late", "2", 0), ("early", "1", 0), ("vip", "3", 9)):
        waiting.add(a_waiting_pod(uid, created, priority))

    assert [p.name for p in waiting.in_order()] == ["vip", "early", "late"]


def test_a_pod_waits_since_it_was_first_seen() -> None:
    now_s = 100.0
    waiting = WaitingPods(clock=lambda: now_s)
    waiting.add(a_waiting_pod("u"))
    now_s = 107.0
    waiting.add(a_waiting_pod("u", priority=1))

    assert waiting.waits_s(PodUid("u")) == 7
    waiting.remove(PodUid("u"))
    assert waiting.waits_s(PodUid("u")) == 0
