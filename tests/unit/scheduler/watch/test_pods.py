"""Which pods the watch lets others wait for."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hami_scheduler.placement.waiting_pods import WaitingPods
from hami_scheduler.watch.pods import PodWatch
from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import PodRequest

SCHEDULER = "hami-scheduler"
REFUSED = {"conditions": [{"type": "PodScheduled", "status": "False"}]}


def pod(*, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"uid": "u", "name": "p", "namespace": "d", "resourceVersion": "1"}
    spec = {"schedulerName": SCHEDULER, **spec}
    return {"metadata": metadata, "spec": spec, "status": status or {}}


def watching(waiting: WaitingPods) -> PodWatch:
    return PodWatch(
        store=cast(Any, None),
        transitions=cast(Any, None),
        waiting=waiting,
        request_of=lambda pod: PodRequest(
            uid=PodUid(pod["metadata"]["uid"]), namespace="d", name="p", containers=()
        ),
        scheduler_name=SCHEDULER,
    )


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(pod(), True, id="new"),
        pytest.param(pod(schedulingGates=[{"name": "kueue"}]), False, id="held-back-by-a-gate"),
        pytest.param(pod(schedulerName="default-scheduler"), False, id="not-ours"),
        pytest.param(pod(nodeName="n1"), False, id="on-a-node"),
        pytest.param(pod(status={"phase": "Failed"}), False, id="ended"),
        pytest.param(pod(status=REFUSED), False, id="refused-before"),
    ],
)
def test_pods_are_expected_that_kube_scheduler_may_ask_for(
    seen: dict[str, Any], expected: bool
) -> None:
    waiting = WaitingPods()

    watching(waiting).on_upsert(seen, None)

    assert waiting.expects_more is expected


@pytest.mark.parametrize("end", ["bound", "deleted", "refused"])
def test_a_pod_that_did_not_come_here_is_expected_no_more(end: str) -> None:
    waiting = WaitingPods()
    watch = watching(waiting)
    watch.on_upsert(pod(), None)

    if end == "bound":  # another replica was asked
        watch.on_upsert(pod(nodeName="n1"), pod())
    elif end == "refused":  # by kube-scheduler itself
        watch.on_upsert(pod(status=REFUSED), pod())
    else:
        watch.on_delete(pod())

    assert not waiting.expects_more
