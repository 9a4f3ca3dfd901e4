"""The order of steps that keeps nomination, cards and CPU, and what other orders lose.

On a real kube-scheduler: the steps must work beside its preemption.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hamicommon.k8s.types import Json

from tests.e2e.conftest import checked_system
from tests.e2e.preempting import (
    HIGH,
    LOW,
    held_back,
    let_go,
    patch,
    patiently,
    pod_of,
    preempting_system,
    release_finalizers,
    with_cpu,
)
from tests.e2e.system import System, wait

pytestmark = pytest.mark.e2e
CARD_MIB = 50_000
"""More than half a card: two such pods are never on one."""


@pytest.fixture(scope="module", autouse=True)
def real_only(cluster_kind: str) -> None:
    if cluster_kind != "real":
        pytest.skip("the emulated kube-scheduler preempts no pods and nominates none")


PAIR = ("--nodes", "2", "--gpus", "1")
PREVIEW = {"HAMI_SCHEDULER_PREEMPTION_MODE": "preview"}


@pytest.fixture(scope="module")
def pair(cluster_kind: str, real_only: None) -> Iterator[System]:
    """Two nodes with one card each."""
    with preempting_system(cluster_kind, *PAIR) as system:
        yield system


@pytest.fixture
def two(pair: System) -> Iterator[System]:
    with checked_system(pair) as system:
        yield system
        release_finalizers(system)


@pytest.fixture(params=["preempt", ""], ids=["with the verb", "without it"])
def alone(cluster_kind: str, real_only: None, request: pytest.FixtureRequest) -> Iterator[System]:
    """Two such nodes on which only kube-scheduler ends pods; whether it asks is the parameter."""
    verb = {"preemptVerb": request.param}
    with (
        preempting_system(cluster_kind, *PAIR, environment=PREVIEW, extender_verbs=verb) as system,
        checked_system(system),
    ):
        yield system
        release_finalizers(system)


def on_node(pod: Json, node: str) -> Json:
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return pod


def most_cpu(system: System) -> int:
    """The CPU of a node less that of pods that always run; too much beside 900 m."""
    [node, *_] = system.get("/api/v1/nodes")["items"]
    return 1000 * int(node["status"]["allocatable"]["cpu"]) - 700


def nominated_node(system: System, path: str = HIGH) -> str:
    return str(system.get(path)["status"].get("nominatedNodeName") or "")


def rooms_of(system: System) -> str:
    """The outcomes of the rooms that `high` had."""
    uid = system.get(HIGH)["metadata"]["uid"]
    return system.sql(f"SELECT room_outcome FROM v_preempted_pods WHERE for_pod_uid = '{uid}'")


def fill(system: System, other: str = "urgent") -> None:
    """A pod on each node: `low`, which is let go by hand, and one of this PriorityClass."""
    system.run(
        on_node(held_back("low", CARD_MIB), "node-0"),
        on_node(pod_of(other, "other", CARD_MIB), "node-1"),
    )


def is_evicted(system: System, name: str = "low") -> bool:
    found = system.pod(name)
    return found is None or "deletionTimestamp" in found["metadata"]


def test_a_room_holds_the_hosts_cpu_and_the_nomination_until_the_pod_is_bound(two: System) -> None:
    fill(two)
    assert two.create(with_cpu(pod_of("urgent", "high", CARD_MIB), 900)).status_code == 201
    wait(lambda: is_evicted(two), "the victim to be evicted")
    greedy = on_node(with_cpu(pod_of("batch", "greedy", 1_000), most_cpu(two)), "node-0")
    assert two.create(greedy).status_code == 201

    assert "Insufficient cpu" in two.wait_for_reason("greedy")
    assert nominated_node(two) == "node-0"
    let_go(two, "low")

    two.wait_for_phase("high", "Running", timeout_s=60)
    wait(lambda: not nominated_node(two), "the nomination to be over")
    assert two.get(HIGH)["spec"]["nodeName"] == "node-0"
    assert two.pod("other")["status"]["phase"] == "Running"  # type: ignore[index]


def test_without_a_nomination_another_pod_takes_the_hosts_cpu_and_ends_as_well(
    two: System,
) -> None:
    fill(two)
    high = with_cpu(patiently(pod_of("urgent", "high", CARD_MIB)), 900)
    assert two.create(high).status_code == 201
    two.wait_for_reason("high")
    two.run(on_node(with_cpu(pod_of("batch", "greedy", 1_000), most_cpu(two)), "node-0"))

    two.api.delete(LOW)
    let_go(two, "low")

    two.wait_for_phase("high", "Running", timeout_s=120)
    assert is_evicted(two, "greedy")


def test_on_several_nodes_the_pods_of_one_end(two: System) -> None:
    fill(two, "batch")
    assert two.create(pod_of("urgent", "high", CARD_MIB)).status_code == 201
    wait(lambda: is_evicted(two) or is_evicted(two, "other"), "one of the two to be evicted")
    release_finalizers(two)

    two.wait_for_phase("high", "Running", timeout_s=60)
    left = {pod["metadata"]["name"] for pod in two.pods()}
    assert left in ({"high", "low"}, {"high", "other"})
    assert rooms_of(two) == "taken"


@pytest.mark.slow
def test_without_a_room_an_eviction_loses_the_nomination_and_pods_end_in_vain_unless_it_asks(
    alone: System, request: pytest.FixtureRequest
) -> None:
    """A pod lacks CPU, which a low pod of each node has, and slices, which an equal pod has."""
    hosts = {f"host-{number}" for number in range(2)}
    for number, host in enumerate(sorted(hosts)):
        node = f"node-{number}"
        alone.run(
            on_node(with_cpu(pod_of("batch", host, 1_000), most_cpu(alone)), node),
            on_node(pod_of("urgent", f"equal-{number}", 60_000), node),
        )
    high = with_cpu(pod_of("urgent", "high", CARD_MIB), 900)
    uid = alone.create(high).json()["metadata"]["uid"]

    if "without it" in request.node.name:
        wait(lambda: all(is_evicted(alone, name) for name in hosts), "both to end in vain")
        # There is CPU now. A nomination that no room stands behind is lost at the next attempt.
        patch(alone, f"{HIGH}/status", {"status": {"nominatedNodeName": "node-0"}})
        patch(alone, HIGH, {"metadata": {"annotations": {"example.com/woken": "now"}}})
        wait(lambda: not nominated_node(alone), "the nomination to be cleared")
    else:
        log = alone.folder / "logs" / "scheduler.log"
        asked = "Answered kube-scheduler's preemption"
        wait(
            lambda: any(uid in line and asked in line for line in log.read_text().splitlines()),
            "kube-scheduler to ask about its victims",
        )
        assert not any(is_evicted(alone, name) for name in hosts)

    assert rooms_of(alone) == ""
    assert alone.pod("high")["status"]["phase"] == "Pending"  # type: ignore[index]
