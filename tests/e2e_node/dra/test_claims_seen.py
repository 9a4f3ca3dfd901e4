"""Slices by claims as people see them, and nodes that can't have them, on a real kubelet."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hamicommon.k8s.pod_annotations import FRONT_END

from tests import measured
from tests.e2e.system import hamictl, slice_of, wait
from tests.e2e_node.dra.claims import (
    CLAIMS,
    claim,
    claiming_pod,
    devices,
    start,
    wait_until_published,
)
from tests.e2e_node.node_system import NodeSystem
from tests.processes import running
from tests.real_node import containerd
from tests.real_node.containerd import Cdi

SLICES_GO_S = 120.0
"""The kubelet takes the slices of a driver away that it has not reached for 30 s."""


def test_explain_grants_and_history_name_the_claim(claiming: NodeSystem) -> None:
    system = claiming
    claim(system, "seen", gpu={"memory": "2048Mi", "cores": "10"})
    assert system.create(claiming_pod(system, "seen")).status_code == 201
    system.wait_for_phase("seen", "Running")
    state = "SELECT state FROM allocations WHERE ended_at IS NULL"
    wait(lambda: system.sql(state) == "allocated", "the agent's report")
    [result] = system.get(f"{CLAIMS}/seen")["status"]["allocation"]["devices"]["results"]

    for verb in (("explain", "seen"), ("get", "allocations")):
        assert "by claim seen request gpu" in hamictl(system.folder, *verb), verb
    history = hamictl(system.folder, "history", "seen")
    assert "seen request gpu" in history
    assert result["shareID"] in history


def test_one_trace_goes_from_admission_over_the_claim_to_the_first_kernel(
    claiming: NodeSystem, controllers: None
) -> None:
    del controllers
    system = claiming
    pod = system.pod_like("traced", slice_of(1024, 5))
    pod["spec"]["schedulerName"] = "default-scheduler"
    pod["metadata"]["annotations"] = {FRONT_END.name: "dra"}
    made = system.create(pod)
    assert made.status_code == 201, made.text
    system.wait_for_phase("traced", "Running")
    admission = made.json()["metadata"]["annotations"]["hami.io/traceparent"].split("-")[1]

    wait(
        lambda: system.spans_since(admission) >= {"admission", "claims", "prepare", "first-kernel"},
        "admission, claims, prepare and first-kernel in linked traces",
        why=lambda: str(system.spans_since(admission)),
    )


def test_a_driver_that_was_away_longer_than_the_kubelet_waits_publishes_again(
    claiming: NodeSystem,
) -> None:
    system = claiming
    claim(system, "stays", gpu={"memory": "2048Mi"})
    assert system.create(claiming_pod(system, "stays")).status_code == 201
    pod = system.wait_for_phase("stays", "Running")
    before = system.container_pid(pod)
    system.agent.stop()
    wait(lambda: devices(system) == [], "the kubelet to take the slices", timeout_s=SLICES_GO_S)

    start(system)
    ready = time.monotonic()
    wait_until_published(system)
    back_s = time.monotonic() - ready

    assert system.container_pid(pod) == before
    assert system.wrong_slice(pod, 2048, core_percent=0) == []
    claim(system, "next", gpu={"memory": "1024Mi"})
    assert system.create(claiming_pod(system, "next")).status_code == 201
    system.wait_for_phase("next", "Running")
    measured.note(f"slices back {back_s:.1f} s after a driver that was away was ready again")


@pytest.fixture
def without_cdi(other_runtime: Path) -> Iterator[Path]:
    """The socket of a runtime that ignores CDI."""
    folder = Path(tempfile.mkdtemp(prefix="hami-cdi-", dir="/run"))
    cdi = Cdi(enabled=False, directory=folder / "cdi")
    plan = containerd.prepare(folder, programs=other_runtime, cdi=cdi)
    try:
        with running(plan):
            yield Path(plan.url.removeprefix("unix://"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_a_node_whose_runtime_ignores_cdi_offers_no_cards_to_claims(
    claiming: NodeSystem, without_cdi: Path
) -> None:
    """Containers on such a node would start without limits."""
    system = claiming
    system.agent.stop()
    system.agent.start(
        HAMI_NODE_AGENT_DRA="auto",
        HAMI_NODE_AGENT_CRI_SOCKET=str(without_cdi),
        HAMI_NODE_AGENT_CDI_DIR=str(system.folder.parent / "cdi"),
    )
    wait(lambda: devices(system) == [], "the slices to go", timeout_s=SLICES_GO_S)
    line = next(at for at in system.agent.log.splitlines()[::-1] if "no DRA devices" in at)
    assert "enable_cdi is false in its configuration" in line

    claim(system, "waits", gpu={"memory": "1024Mi"})
    assert system.create(claiming_pod(system, "waits")).status_code == 201
    assert "cannot allocate all claims" in system.wait_for_reason("waits")
    assert system.live_allocations() == 0
