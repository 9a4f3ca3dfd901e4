"""A pod that no node can take waits: kube-scheduler asks for it again when the cluster changes, and
not because of its last write."""

import pytest
from hamicommon.k8s.types import Json

from tests.e2e.conftest import running_system
from tests.e2e.system import System, a_pod, slice_of, wait

NODES = 3
CARDS = 2
PROBE = ("vgpu-probe", "--no-launch")
EVERY_CARD = {"nvidia.com/gpu": CARDS}


def test_a_refused_pod_above_others_keeps_one_short_condition(cluster_kind: str) -> None:
    """With pods of lower priority on the nodes kube-scheduler tries a preemption, unless every node
    is called unresolvable."""
    if cluster_kind != "real":
        pytest.skip("the emulated kube-scheduler tries no preemption; --cluster=real does")
    with running_system(cluster_kind, "--nodes", str(NODES), "--gpus", str(CARDS)) as system:
        holders = [a_pod(f"low-{n}", EVERY_CARD, command=PROBE) for n in range(NODES)]
        running = system.run(*holders)
        assert len({pod["spec"]["nodeName"] for pod in running}) == NODES
        urgent = a_pod("urgent", slice_of(1024), command=PROBE)
        urgent["spec"]["priorityClassName"] = "system-cluster-critical"
        assert system.create(urgent).status_code == 201
        first = system.wait_for_reason("urgent")

        written = {first}
        for number in range(3):
            before = decisions(system)
            # Any change of the cluster wakes a pod that an extender refused.
            system.run(a_pod(f"other-{number}", {}, command=("sleep", "600")))
            wait(lambda before=before: decisions(system) > before, "the pod to be asked for again")
            written.add(system.wait_for_reason("urgent"))
            system.delete(f"other-{number}")

        assert written == {first}
        assert f"{NODES} {CARDS}/{CARDS} CardInsufficientMemory" in first
        assert "node-" not in first, "no list of nodes, whose order would change each time"
        assert read_nominated_node(system.pod("urgent")) == ""
        assert all(system.pod(pod["metadata"]["name"]) for pod in running), "nobody was ended"


def decisions(system: System) -> int:
    """Number of calls of /filter for the pod."""
    asked = "SELECT coalesce(sum(repeat_count), 0) FROM decisions WHERE pod_name = 'urgent'"
    return int(system.sql(asked))


def read_nominated_node(pod: Json | None) -> str:
    """The node that kube-scheduler keeps for the pod."""
    assert pod is not None
    return str(pod["status"].get("nominatedNodeName") or "")
