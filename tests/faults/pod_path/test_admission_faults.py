"""FAULT-1..5: the webhook is away, slow, changes its certificate; the pod is mutated twice."""

import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hamilocal.servers.certificates import Authority

from tests.e2e.system import System, a_pod, slice_of, wait
from tests.faults.processes import kill_services, suspend_service
from tests.faults.stage import Faulty, Stage, since
from tests.waiting import Unhurried


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-1",
    fault="the webhook",
    kind="kill",
    answer="creation is refused and tried again; no pod passes unseen",
    promise="SAFE-3 SAFE-5 LIVE-2",
)
def test_f1_a_killed_webhook_refuses_and_no_pod_passes_unseen(system: System, stage: Stage) -> None:
    stage.run_before(2)

    with kill_services(system, "webhook"):
        stage.come(2)
    back_s = time.monotonic()
    stage.settle()

    # Every pod that got in went through the webhook: its mark is on every pod.
    for pod in stage.mine():
        assert pod["spec"]["schedulerName"] == "hami-scheduler"
        assert "hami.io/traceparent" in pod["metadata"]["annotations"]
    stage.check()
    stage.report(since(back_s))


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-2",
    fault="the webhook, beyond its timeout",
    kind="delay",
    answer="refused after the timeout, taken when tried again",
    promise="SAFE-3 SAFE-5 LIVE-2",
)
def test_f2_a_webhook_that_answers_late_is_waited_for(faulty: Faulty, stage: Stage) -> None:
    pod = a_pod("late", slice_of(1024, 5), command=("vgpu-probe", "--no-launch"))

    with suspend_service(faulty.system, "webhook"):
        asking = Unhurried()
        # The failure policy is Fail: after its time-out the pod is refused, never let through.
        answer = faulty.system.create(pod)
        refused_s = asking.seconds
    assert answer.status_code == 500, answer.text
    assert "webhook" in answer.json()["message"]
    assert refused_s < 10.0
    stage.come(2)
    recovered_s = stage.settle()

    assert faulty.system.pod("late") is None
    stage.check()
    stage.report(recovered_s, more=f"refused in {refused_s:.1f} s")


@pytest.mark.slow
@pytest.mark.row(
    point="FAULT-3",
    fault="the webhook's certificate, rotated between requests",
    kind="error",
    answer="the new one is served without a restart",
    promise="LIVE-2",
)
def test_f3_a_rotated_certificate_is_served_without_a_restart(system: System, stage: Stage) -> None:
    folder = system.folder / "credentials"
    address = urlsplit(system.described["webhook_url"])
    authority = Authority.load(folder / "ca.pem", folder / "ca.key")
    before = ssl.get_server_certificate((address.hostname, address.port))

    stage.come(2)
    _rotate(authority, folder)
    stage.come(2)
    wait(
        lambda: ssl.get_server_certificate((address.hostname, address.port)) != before,
        "the new certificate to be served",
    )
    rotated_s = time.monotonic()
    stage.come(2)
    stage.recover(since_s=rotated_s)


@pytest.mark.row(
    point="FAULT-4 FAULT-5",
    fault="a pod mutated twice, with a sidecar and another pod's annotations",
    kind="duplicate",
    answer="the annotations are dropped; each container has its own slice",
    promise="SAFE-2 SAFE-5",
)
def test_f4_f5_a_pod_that_was_mutated_before_is_left_as_it_is(system: System, stage: Stage) -> None:
    stage.come(1)
    stage.settle()
    [first] = stage.mine()

    # What the API server has after one mutation, with a sidecar, goes through admission again.
    again = a_pod(
        "again",
        containers={"cuda": slice_of(1024, 5), "injected": slice_of(2048, 5)},
        command=("vgpu-probe", "--no-launch"),
        annotations=first["metadata"]["annotations"],
    )
    again["spec"]["schedulerName"] = first["spec"]["schedulerName"]
    [twice] = system.run(again)

    for name, size_mib in (("cuda", 1024), ("injected", 2048)):
        lines = system.wait_for_log(twice, name, "running")
        seen = [line["total_bytes"] >> 20 for line in lines if line["event"] == "device"]
        assert seen == [size_mib]
    granted = twice["metadata"]["annotations"]["hami.io/grant"]
    assert granted != first["metadata"]["annotations"]["hami.io/grant"]
    wait(lambda: system.ledger_difference() is None, "ledger = pods")
    stage.check()
    stage.report(0.0)


def _rotate(authority: Authority, folder: Path) -> None:
    authority.make_serving(
        "webhook",
        certificate_file=folder / "webhook.pem",
        key_file=folder / "webhook.key",
    )
