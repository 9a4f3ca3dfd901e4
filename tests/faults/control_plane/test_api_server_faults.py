"""FAULT-12, -15, -19, -20: the API server refuses, loses answers, is late, ends watches.

Only our own services may restart here: a kubelet would read the kubeconfig that names the proxy.
"""

import time
from collections.abc import Iterator

import pytest

from tests.e2e.system import wait
from tests.faults.control_plane.api_proxy import ApiProxy, proxy_services
from tests.faults.pod_path.test_group_faults import SIZE, bound_members, come
from tests.faults.processes import serving_pid
from tests.faults.stage import Faulty, Stage

SERVICES = ("scheduler", "node-agent-node-0", "node-agent-node-1")
FAULT_S = 4.0
"""A fault lasts so long: it is the time that is tried, there is no event to wait for."""
PAUSE_S = 0.2
"""Between two watches that are ended, so that some end while they are listed again."""


@pytest.fixture(scope="module")
def proxy(faulty_cluster: Faulty) -> Iterator[ApiProxy]:
    """Between the API server and our services, for this module's cases that ask for it."""
    with proxy_services(faulty_cluster.system, SERVICES) as made:
        yield made


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-19",
    fault="the API server refuses every second request",
    kind="error",
    answer="tried again with pauses, and after 429's Retry-After; no process ends",
    promise="SAFE-1..3 SAFE-6 LIVE-2",
)
@pytest.mark.parametrize("status", [401, 403, 422, 429, 500, 503])
def test_f19_an_api_server_that_refuses_every_second_request(
    faulty: Faulty, stage: Stage, proxy: ApiProxy, status: int
) -> None:
    pids = {service: serving_pid(faulty.system, service) for service in SERVICES}
    refused_before = proxy.refused
    proxy.status = status

    stage.come(6)
    time.sleep(FAULT_S)
    proxy.status = 0
    recovered_s = stage.settle()

    refused = proxy.refused - refused_before
    assert refused > 0
    assert {service: serving_pid(faulty.system, service) for service in SERVICES} == pids
    stage.check()
    stage.report(
        recovered_s,
        more=f"{refused} requests refused",
    )


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-15 FAULT-19",
    fault="the API server carries writes out and loses the answers",
    kind="error",
    answer="what was written is read back; nothing is done twice",
    promise="SAFE-1..3 SAFE-6 LIVE-2",
)
def test_f15_f19_writes_whose_answers_are_lost(stage: Stage, proxy: ApiProxy) -> None:
    proxy.lose_answers = True

    stage.come(6)
    time.sleep(FAULT_S)
    proxy.lose_answers = False
    recovered_s = stage.settle()

    assert proxy.lost > 0
    stage.check()
    stage.report(
        recovered_s,
        more=f"{proxy.lost} answers lost",
    )


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-20",
    fault="watches end with 410 (compaction)",
    kind="error",
    answer="listed again; what was missed is compared",
    promise="LIVE-2",
)
def test_f20_watches_that_end_with_410(stage: Stage, proxy: ApiProxy) -> None:
    stage.come(2)
    stage.settle()
    expired_before = proxy.expired

    for _ in range(4):
        proxy.expire_watches()
        stage.come(1)
        time.sleep(PAUSE_S)
    recovered_s = stage.settle()

    assert proxy.expired > expired_before
    stage.check()
    stage.report(
        recovered_s,
        more=f"{proxy.expired - expired_before} watches ended",
    )


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-12",
    fault="the API server a second late, so views are old",
    kind="delay",
    answer="the ledger decides, not the view",
    promise="SAFE-1 SAFE-2 LIVE-2",
)
def test_f12_a_view_that_is_seconds_old_grants_nothing_twice(stage: Stage, proxy: ApiProxy) -> None:
    """The API server answers our services a second late; the ledger decides all the same."""
    proxy.delay_s = 1.0

    stage.come(6)
    time.sleep(FAULT_S)
    proxy.delay_s = 0.0
    stage.recover()


@pytest.mark.row(
    point="FAULT-20",
    fault="the pod watch is seconds behind kube-scheduler's when a group comes",
    kind="delay",
    answer="no member is placed alone; all start when the watch shows them",
    promise="SAFE-1..3 LIVE-2",
)
def test_f20_a_group_that_the_watch_shows_late(stage: Stage, proxy: ApiProxy) -> None:
    proxy.holds_watches = True
    come(stage, *range(SIZE))
    time.sleep(FAULT_S)
    assert bound_members(stage) == []

    proxy.holds_watches = False
    wait(lambda: len(bound_members(stage)) == SIZE or None, "all to be bound", timeout_s=60)
    stage.recover()
