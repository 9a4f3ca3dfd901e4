"""Which changes of a pod end what /filter assumed for it."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hami_scheduler.ledger.cluster_state import ClusterState
from hami_scheduler.placement.waiting_pods import WaitingPods
from hami_scheduler.watch.pods import PodWatch
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import PodRequest

from tests.contract.ledger.allocation_stores import container, draft
from tests.unit.scheduler.states import state_of

SCHEDULER = "hami-scheduler"
UID = PodUid("u")
REFUSED = {"conditions": [{"type": "PodScheduled", "status": "False"}]}
EARLIER = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Earlier"}]}


def pod(*, version: int = 1, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"uid": UID, "name": "p", "namespace": "d", "resourceVersion": str(version)}
    spec = {"schedulerName": SCHEDULER, **spec}
    return {"metadata": metadata, "spec": spec, "status": status or {}}


def request() -> PodRequest:
    return PodRequest(uid=UID, namespace="d", name="p", containers=())


def watching(state: ClusterState, waiting: WaitingPods) -> PodWatch:
    return PodWatch(
        store=cast(Any, None),
        transitions=cast(Any, None),
        state=state,
        waiting=waiting,
        request_of=lambda _: request(),
        scheduler_name=SCHEDULER,
    )


def assumed_on(node: str) -> ClusterState:
    state = state_of()
    state.assume(draft(UID, container(), node=NodeName(node)))
    return state


@pytest.mark.parametrize(
    ("seen", "stays"),
    [
        pytest.param(pod(version=2), True, id="some-change"),
        pytest.param(pod(version=2, nodeName="n1"), True, id="bound-there"),
        pytest.param(pod(version=2, nodeName="n2"), False, id="bound-elsewhere"),
        pytest.param(pod(version=2, status={"phase": "Failed"}), False, id="ended"),
        pytest.param(pod(version=2, status=REFUSED), False, id="given-up"),
        pytest.param(pod(version=2, status=EARLIER), True, id="given-up-before"),
        pytest.param(pod(version=2, schedulingGates=[{"name": "g"}]), False, id="gated-again"),
        pytest.param(pod(version=0, status=REFUSED), True, id="an-older-version"),
    ],
)
def test_an_assumption_ends_when_its_pod_will_not_come_to_bind(
    seen: dict[str, Any], stays: bool
) -> None:
    state, waiting = assumed_on("n1"), WaitingPods()
    waiting.note_visit(pod(status=EARLIER), request())

    watching(state, waiting).on_upsert(seen, pod(status=EARLIER))

    assert (state.assumption(UID) is not None) is stays


@pytest.mark.parametrize(
    ("nominated", "stays"),
    [
        pytest.param("n1", True, id="the-assumed-node"),
        pytest.param("n2", False, id="another-node"),
        pytest.param("", False, id="none"),
    ],
)
def test_an_assumption_outlives_its_deadline_while_kube_scheduler_waits_with_it(
    nominated: str, stays: bool
) -> None:
    now = 0.0
    state, waiting = state_of(ttl_s=10.0, clock=lambda: now), WaitingPods()
    state.assume(draft(UID, container(), node=NodeName("n1")))
    waiting.note_visit(pod(), request())

    watching(state, waiting).on_upsert(
        pod(version=2, status={"nominatedNodeName": nominated}), pod()
    )

    now = 299.0
    state.expire()
    assert (state.assumption(UID) is not None) is stays
    now = 301.0
    state.expire()
    assert state.assumption(UID) is None


def test_a_nomination_from_before_the_assumption_keeps_nothing() -> None:
    now = 0.0
    state, waiting = state_of(ttl_s=10.0, clock=lambda: now), WaitingPods()
    state.assume(draft(UID, container(), node=NodeName("n1")))
    nominated = {"nominatedNodeName": "n1"}
    waiting.note_visit(pod(status=nominated), request())

    watching(state, waiting).on_upsert(pod(version=2, status=nominated), pod(status=nominated))

    now = 11.0
    state.expire()
    assert state.assumption(UID) is None


def test_an_assumption_ends_with_its_pod() -> None:
    state = assumed_on("n1")

    watching(state, WaitingPods()).on_delete(pod())

    assert state.assumption(UID) is None
