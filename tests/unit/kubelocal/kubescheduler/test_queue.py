"""When a waiting pod is tried again."""

import pytest
from hamicommon.k8s.types import Json
from hypothesis import given, settings
from hypothesis import strategies as st
from kubelocal.kubescheduler.queue import SchedulingQueue

from tests.unit.kubelocal.kubescheduler.objects import a_pod


def pop_name(queue: SchedulingQueue, now_s: float) -> str | None:
    waiting = queue.pop(now_s)
    return waiting.pod["metadata"]["name"] if waiting else None


def refuse_next(queue: SchedulingQueue, now_s: float, *, by_extender: bool = False) -> None:
    waiting = queue.pop(now_s)
    assert waiting is not None
    queue.record_failure(waiting.uid, now_s, unschedulable=True, by_extender=by_extender)


def with_annotation(pod: Json) -> Json:
    metadata = {**pod["metadata"], "annotations": {"hami.io/retry-at": "now"}}
    return {**pod, "metadata": metadata}


def test_higher_priority_first_then_the_order_of_arrival() -> None:
    queue = SchedulingQueue()
    for name, priority in (("a", 0), ("b", 10), ("c", 0)):
        queue.add(a_pod(name, priority=priority), 0.0)
    assert [pop_name(queue, 0.0) for _ in range(4)] == ["b", "a", "c", None]


def test_a_refused_pod_waits_for_an_event() -> None:
    queue = SchedulingQueue()
    queue.add(a_pod(), 0.0)
    refuse_next(queue, 0.0)
    assert queue.pop(100.0) is None
    queue.move_all(100.0)
    assert pop_name(queue, 100.0) == "p1"


def test_pauses_double_from_one_to_ten_seconds() -> None:
    queue = SchedulingQueue()
    queue.add(a_pod(), 0.0)
    now_s, pauses = 0.0, []
    for _ in range(6):
        refuse_next(queue, now_s)
        queue.move_all(now_s)
        wake_at_s = queue.wake_at_s()
        assert wake_at_s is not None
        assert queue.pop(wake_at_s - 0.001) is None
        pauses.append(wake_at_s - now_s)
        now_s = wake_at_s
    assert pauses == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_an_event_during_the_attempt_counts_for_the_pod_being_tried() -> None:
    queue = SchedulingQueue()
    queue.add(a_pod(), 0.0)
    waiting = queue.pop(0.0)
    assert waiting is not None
    queue.move_all(0.0)
    queue.record_failure(waiting.uid, 0.0, unschedulable=True)
    assert queue.wake_at_s() == 1.0


def test_an_event_before_the_attempt_does_not_count() -> None:
    queue = SchedulingQueue()
    queue.add(a_pod(), 0.0)
    queue.move_all(0.0)
    refuse_next(queue, 0.0)
    assert queue.counts()["unschedulable"] == 1


def test_an_error_is_tried_again_without_an_event() -> None:
    queue = SchedulingQueue()
    queue.add(a_pod(), 0.0)
    waiting = queue.pop(0.0)
    assert waiting is not None
    queue.record_failure(waiting.uid, 0.0, unschedulable=False)
    assert pop_name(queue, 1.0) == "p1"


def test_a_patch_of_its_own_annotation_wakes_a_pod_after_its_pause() -> None:
    queue = SchedulingQueue()
    pod = a_pod()
    queue.add(pod, 0.0)
    refuse_next(queue, 0.0)
    queue.update(pod, with_annotation(pod), 0.5)
    assert queue.pop(0.9) is None
    assert pop_name(queue, 1.0) == "p1"


@pytest.mark.parametrize(("by_extender", "queued"), [(False, "unschedulable"), (True, "backoff")])
def test_a_change_of_its_status_requeues_a_pod_that_an_extender_refused_alone(
    by_extender: bool, queued: str
) -> None:
    queue = SchedulingQueue()
    pod = a_pod()
    queue.add(pod, 0.0)
    refuse_next(queue, 0.0, by_extender=by_extender)
    queue.update(pod, {**pod, "status": {"conditions": ["PodScheduled"]}}, 0.5)
    assert queue.counts()[queued] == 1


@pytest.mark.parametrize(("by_extender", "queued"), [(False, "unschedulable"), (True, "backoff")])
@pytest.mark.parametrize("event", ["another pod", "own status"])
def test_an_event_during_the_attempt_requeues_a_pod_that_an_extender_refuses_alone(
    by_extender: bool, queued: str, event: str
) -> None:
    queue = SchedulingQueue()
    pod = a_pod()
    queue.add(pod, 0.0)
    waiting = queue.pop(0.0)
    assert waiting is not None
    if event == "own status":
        queue.update(pod, {**pod, "status": {"conditions": ["PodScheduled"]}}, 0.1)
    else:
        queue.move_refused_by_extenders(0.1)
    queue.record_failure(waiting.uid, 0.2, unschedulable=True, by_extender=by_extender)
    assert queue.counts()[queued] == 1


def test_another_pods_binding_requeues_a_pod_that_an_extender_refused_alone() -> None:
    queue = SchedulingQueue()
    for name in ("p1", "p2"):
        queue.add(a_pod(name), 0.0)
    refuse_next(queue, 0.0)
    refuse_next(queue, 0.0, by_extender=True)
    queue.move_refused_by_extenders(5.0)
    assert pop_name(queue, 5.0) == "p2"
    assert queue.pop(5.0) is None


def test_events_before_the_second_attempt_do_not_make_a_third() -> None:
    queue = SchedulingQueue()
    pod = a_pod()
    queue.add(pod, 0.0)
    refuse_next(queue, 0.0, by_extender=True)
    queue.update(pod, {**pod, "status": {"conditions": ["PodScheduled"]}}, 0.5)
    refuse_next(queue, 1.0, by_extender=True)
    assert queue.counts()["unschedulable"] == 1


def test_a_patch_during_the_attempt_counts_and_the_new_pod_is_tried() -> None:
    queue = SchedulingQueue()
    pod = a_pod()
    queue.add(pod, 0.0)
    waiting = queue.pop(0.0)
    assert waiting is not None
    queue.update(pod, with_annotation(pod), 0.1)
    queue.record_failure(waiting.uid, 0.2, unschedulable=True)
    again = queue.pop(1.2)
    assert again is not None
    assert again.pod["metadata"]["annotations"] == {"hami.io/retry-at": "now"}


def test_a_pod_that_nothing_wakes_is_tried_again_after_five_minutes() -> None:
    queue = SchedulingQueue()
    queue.add(a_pod(), 0.0)
    refuse_next(queue, 0.0)
    queue.flush(300.0)
    assert queue.pop(300.0) is None
    queue.flush(300.1)
    assert pop_name(queue, 300.1) == "p1"


@pytest.mark.parametrize("when", ["waiting", "in flight"])
def test_a_pod_that_is_gone_is_not_tried_again(when: str) -> None:
    queue = SchedulingQueue()
    queue.add(a_pod(), 0.0)
    if when == "in flight":
        queue.pop(0.0)
    queue.remove("uid-p1")
    assert not queue.record_failure("uid-p1", 0.0, unschedulable=False)
    queue.move_all(0.0)
    assert queue.pop(100.0) is None


_STEPS = ["add", "pop", "fail", "refuse", "error", "done", "move", "event", "touch"]


@settings(max_examples=100)
@given(st.lists(st.sampled_from(_STEPS)))
def test_a_pod_is_in_one_queue_at_most_and_none_is_lost(steps: list[str]) -> None:
    queue, alive, flying, now_s = SchedulingQueue(), 0, [], 0.0
    for number, step in enumerate(steps):
        now_s += 0.7
        match step:
            case "add":
                queue.add(a_pod(f"p{number}"), now_s)
                alive += 1
            case "pop":
                waiting = queue.pop(now_s)
                flying += [waiting] if waiting else []
            case "fail" | "refuse" | "error" if flying:
                unschedulable, refuse = step != "error", step == "refuse"
                queue.record_failure(
                    flying.pop().uid, now_s, unschedulable=unschedulable, by_extender=refuse
                )
            case "done" if flying:
                queue.done(flying.pop().uid)
                alive -= 1
            case "move":
                queue.move_all(now_s)
            case "event":
                queue.move_refused_by_extenders(now_s)
            case "touch" if flying:
                queue.update(flying[-1].pod, with_annotation(flying[-1].pod), now_s)
        assert sum(queue.counts().values()) == alive
        assert queue.counts()["in_flight"] == len(flying)
