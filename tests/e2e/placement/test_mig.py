"""Cards cut on demand: the scheduler reserves profile and place, the agent makes the instance.

It has a separate system, because the operating mode is the whole node's; nothing smaller shows that
the agent reads what the scheduler writes.
"""

import json
import re
from functools import partial

import httpx
from hamicommon.k8s.types import Json

from tests.e2e.conftest import running_system
from tests.e2e.system import System, a_pod, slice_of, wait

TIMEOUT_S = 120.0
PRINT_DEVICE = (
    "sh",
    "-c",
    'printf \'{"event": "device", "uuid": "%s"}\\n\' "$NVIDIA_VISIBLE_DEVICES"; exec sleep 600',
)


def test_pods_get_instances_of_their_size_and_the_card_is_cut_again_after_them(
    cluster_kind: str,
) -> None:
    mig = {"HAMI_NODE_AGENT_OPERATING_MODE": "mig"}
    with running_system(cluster_kind, "--nodes", "1", "--gpus", "1", environment=mig) as system:
        small, half = system.run(
            a_pod("small", slice_of(9000), command=PRINT_DEVICE),
            a_pod("half", slice_of(40000), command=PRINT_DEVICE),
        )
        uuids = {device_of(system, small), device_of(system, half)}
        assert len(uuids) == 2
        assert all(uuid.startswith("MIG-") for uuid in uuids)
        for pod in (small, half):
            [entry] = wait(
                partial(wait_for_instances, system, pod), "the instance's names on the pod"
            )
            assert entry["migUUID"] == device_of(system, pod)
        url = system.described["metrics_url"]
        wait(
            lambda: list_shown_instances(httpx.get(url).text) == uuids,
            "the instances in the metrics",
        )

        assert (
            system.create(a_pod("whole", slice_of(80000), command=PRINT_DEVICE)).status_code == 201
        )
        assert "CardInsufficientMemory" in system.wait_for_reason("whole")
        system.delete("small", "half", timeout_s=TIMEOUT_S)
        whole = system.wait_for_phase("whole", "Running", timeout_s=TIMEOUT_S)

        assert device_of(system, whole) not in uuids
        system.check_invariants()


def wait_for_instances(system: System, pod: Json) -> list[Json]:
    """The pod's slices by its annotation, once the node has named them all."""
    now = system.pod(pod["metadata"]["name"]) or pod
    entries = json.loads(now["metadata"]["annotations"]["hami.io/vgpu-mig-allocations"])
    return entries if all("migUUID" in entry for entry in entries) else []


def list_shown_instances(page: str) -> set[str]:
    """The instances on the cluster's page."""
    lines = [line for line in page.splitlines() if line.startswith("hami_node_gpu_mig_instance")]
    return {re.findall('mig_uuid="([^"]*)"', line)[0] for line in lines}


def device_of(system: System, pod: dict[str, object]) -> str:
    """The MIG device that the container was given."""

    def read_last_line() -> str:
        found = [line["uuid"] for line in system.log(pod, "cuda") if line["event"] == "device"]
        return str(found[-1]) if found else ""

    return wait(read_last_line, "the container to print its device")
