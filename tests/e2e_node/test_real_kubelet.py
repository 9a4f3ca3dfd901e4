"""The way of a pod on a real kubelet and containerd: placed, answered, mounted, held, released."""

import os
import signal
import time
from pathlib import Path

from hami_node_agent.adapters.kubelet.state import KubeletStateReader, read_checkpoint
from hami_node_agent.devices.replica_ids import card_of
from hami_node_agent.grants.ports import KeptAnswer
from hamicommon.k8s.types import Json

from tests import measured
from tests.control_plane import Assets
from tests.e2e.system import MIB, slice_of, wait
from tests.e2e_node.node_system import NodeSystem
from tests.real_node.kubelet import DEVICE_PLUGINS, POD_RESOURCES

CARD_MIB = 81920
# Older kubelets hold resources that only our scheduler counts against a pod's init containers
# (kubernetes#124273).
INIT_SLICES_SINCE = (1, 31)


def test_a_pod_is_placed_started_and_held_to_its_slice(system: NodeSystem) -> None:
    began_s = time.monotonic()
    [pod] = system.run(system.pod_like("one", slice_of(4096, 30)))
    measured.note(f"one pod: Running {time.monotonic() - began_s:.2f} s after its creation")

    assert system.seen_mib(pod) == [4096]

    uid = pod["metadata"]["uid"]
    root, mounts = Path(f"/proc/{system.container_pid(pod)}"), system.mounts(pod)
    assert "/hook/vgpu/libvgpu.so." in mounts["/usr/local/vgpu/libvgpu.so"]
    assert mounts["/usr/local/vgpu"].endswith(f"/hook/vgpu/containers/{uid}_cuda")
    assert mounts["/etc/ld.so.preload"].endswith("/vgpu/ld.so.preload")
    assert "/limits/" in mounts["/etc/hami"]
    wait(
        lambda: (
            system.sql(f"SELECT max(memory_used_bytes) FROM usage_samples WHERE pod_uid = '{uid}'")
            == str(4096 * MIB)
        ),
        "the agent to read what the container uses",
    )
    limits = (root / "root/etc/hami/limits").read_text()
    assert f"memory_bytes {4096 * MIB} core_percent 30" in limits
    assert pod["metadata"]["annotations"]["hami.io/vgpu-node"] == system.node.name


def test_two_pods_on_one_card_have_each_their_own_limits(system: NodeSystem) -> None:
    pods = system.run(
        system.pod_like("big", slice_of(10240, 20)), system.pod_like("small", slice_of(2048, 10))
    )

    assert [system.seen_mib(pod) for pod in pods] == [[10240], [2048]]
    assert system.sql("SELECT max(used_slots), max(used_memory_mib) FROM devices") == "2|12288"


def test_an_init_container_has_its_own_share(system: NodeSystem) -> None:
    # Cores 0 is asked of every kubelet alike: see the next case.
    whole = {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 0}
    [pod] = system.run(system.pod_like("init", slice_of(2048, 10), init=whole))

    assert system.seen_mib(pod, "init") == [CARD_MIB]
    assert system.seen_mib(pod, "cuda") == [2048]


def test_an_init_container_has_a_slice_where_the_kubelet_allows_it(
    system: NodeSystem, node_assets: Assets
) -> None:
    pod = system.pod_like("slice", slice_of(2048, 10), init=slice_of(8192, 20))
    if node_assets.version >= INIT_SLICES_SINCE:
        [running] = system.run(pod)
        assert system.seen_mib(running, "init") == [8192]
        assert system.seen_mib(running, "cuda") == [2048]
        return
    assert system.create(pod).status_code == 201

    refused = system.wait_for_phase("slice", "Failed")

    assert refused["status"]["reason"].startswith("OutOfnvidia.com/gpu")
    wait(lambda: system.live_allocations() == 0, "the release of what was refused")


def test_two_containers_have_each_their_own_slice(system: NodeSystem) -> None:
    parts = {"left": slice_of(3000, 20), "right": slice_of(5000, 10)}
    [pod] = system.run(system.pod_like("two", containers=parts))

    assert system.seen_mib(pod, "left") == [3000]
    assert system.seen_mib(pod, "right") == [5000]


def test_a_restarted_container_is_held_to_the_same_slice(system: NodeSystem) -> None:
    [pod] = system.run(system.pod_like("again", slice_of(4096, 30)))
    assert system.seen_mib(pod) == [4096]
    before = system.container_pid(pod)
    kept = (system.agent.folder / "agent" / "limits").glob("*/limits")
    [limits] = [path for path in kept if path.samefile(f"/proc/{before}/root/etc/hami/limits")]
    limits.unlink()  # PreStartContainer writes it again

    os.kill(before, signal.SIGKILL)

    wait(lambda: len(_events(system, pod, "launched")) == 2, "the probe's second life")
    assert system.container_pid(pod) != before
    assert limits.exists()
    assert [line["bytes"] for line in _events(system, pod, "allocated")] == [4096 * MIB] * 2


def test_a_restarted_kubelet_touches_no_running_pod(system: NodeSystem) -> None:
    [before] = system.run(system.pod_like("before", slice_of(4096, 30)))
    assert system.seen_mib(before) == [4096]
    process = system.container_pid(before)

    system.node.restart_kubelet()
    began_s = time.monotonic()
    registered = "Registered with the kubelet"
    count = system.agent.log.count(registered)
    wait(lambda: system.agent.log.count(registered) > count, "the registration")
    measured.note(
        f"kubelet killed and restarted: known to it again after {time.monotonic() - began_s:.2f} s"
    )
    system.wait_until_offered()

    [after] = system.run(system.pod_like("after", slice_of(2048, 10)))
    assert system.seen_mib(after) == [2048]
    _assert_untouched(system, before, process)


def test_sums_of_cards_stay_in_the_nodes_capacity_and_are_taken_off(system: NodeSystem) -> None:
    names = {"nvidia.com/gpumem", "nvidia.com/gpucores"}

    def listed_names() -> set[str]:
        """Return which of them the kubelet's Node lists as allocatable, with an amount."""
        allocatable = system.get("/api/v1/nodes/real")["status"]["allocatable"]
        return {name for name in names if allocatable.get(name, "0") != "0"}

    def restart(report: str) -> None:
        system.agent.kill()
        wait(lambda: system.offered_slots() == 0, "the kubelet to miss the plugin")
        system.agent.start(HAMI_NODE_AGENT_REPORT_CAPACITY=report)
        system.wait_until_offered()

    restart("on")
    wait(lambda: listed_names() == names, "the sums")
    # The kubelet admits by them now.
    [first] = system.run(system.pod_like("first", slice_of(4096, 30)))
    count = system.agent.log.count("Registered with the kubelet")
    system.node.restart_kubelet()
    wait(lambda: system.agent.log.count("Registered with the kubelet") > count, "the registration")
    system.wait_until_offered()
    [second] = system.run(system.pod_like("second", slice_of(4096, 30)))
    assert listed_names() == names
    assert [system.seen_mib(pod) for pod in (first, second)] == [[4096], [4096]]

    restart("remove")
    wait(lambda: not listed_names(), "the sums to go")
    capacity = system.get("/api/v1/nodes/real")["status"]["capacity"]
    assert names.isdisjoint(capacity)
    restart("off")


def test_a_killed_agent_comes_back_and_touches_no_running_pod(system: NodeSystem) -> None:
    [before] = system.run(system.pod_like("before", slice_of(4096, 30)))
    assert system.seen_mib(before) == [4096]
    process = system.container_pid(before)

    system.agent.kill()
    wait(lambda: system.offered_slots() == 0, "the kubelet to miss the plugin")
    system.agent.start()
    system.wait_until_offered()

    [after] = system.run(system.pod_like("after", slice_of(2048, 10)))
    assert system.seen_mib(after) == [2048]
    _assert_untouched(system, before, process)


def test_a_pod_that_comes_while_the_agent_is_away_waits_for_it(system: NodeSystem) -> None:
    system.agent.kill()
    for number in range(3):
        assert system.create(system.pod_like(f"early-{number}", slice_of(2048, 10))).is_success

    system.agent.start()

    pods = [system.wait_for_phase(f"early-{number}", "Running") for number in range(3)]
    assert [system.seen_mib(pod) for pod in pods] == [[2048]] * 3


def test_a_pod_that_comes_right_after_a_kubelets_restart_is_not_lost(system: NodeSystem) -> None:
    system.node.restart_kubelet()
    for number in range(3):
        assert system.create(system.pod_like(f"early-{number}", slice_of(2048, 10))).is_success

    pods = [system.wait_for_phase(f"early-{number}", "Running") for number in range(3)]
    assert [system.seen_mib(pod) for pod in pods] == [[2048]] * 3


def test_a_pod_that_bypassed_the_scheduler_is_refused(system: NodeSystem) -> None:
    pod = system.pod_like("bypass", {"nvidia.com/gpu": 1})
    pod["spec"]["nodeName"] = system.node.name
    assert "pod has node assigned" in system.create(pod).json()["message"]
    pod["spec"]["schedulerName"] = "somebody-else"
    assert system.create(pod).status_code == 201

    refused = system.wait_for_phase("bypass", "Failed")

    assert refused["status"]["reason"] == "UnexpectedAdmissionError"
    assert "HAMi's scheduler" in refused["status"]["message"]
    measured.note(f"refused: {refused['status']['message']}")
    assert system.live_allocations() == 0


async def test_the_kubelets_own_checkpoint_is_read_as_it_is(system: NodeSystem) -> None:
    parts = {"left": slice_of(3000, 20), "right": slice_of(5000, 10)}
    [pod] = system.run(system.pod_like("two", containers=parts))
    uid = pod["metadata"]["uid"]
    checkpoint = DEVICE_PLUGINS / "kubelet_internal_checkpoint"

    kept = read_checkpoint(checkpoint.read_bytes(), "nvidia.com/gpu")
    kept = tuple(holding for holding in kept if holding.pod_uid == uid)
    listed = await KubeletStateReader(
        checkpoint=Path("/nonexistent"),
        pod_resources=POD_RESOURCES,
        resource="nvidia.com/gpu",
        uid_of=lambda _, name: uid if name == "two" else "",
    ).holdings()

    assert {(h.container, h.device_ids) for h in kept} == {
        (h.container, h.device_ids) for h in listed
    }
    assert {h.container for h in kept} == {"left", "right"}
    for holding in kept:
        assert isinstance(holding.answer, KeptAnswer)
        limits = system.agent.folder / "agent" / "limits" / holding.answer.nonce / "limits"
        pid = system.container_pid(pod, holding.container)
        assert limits.samefile(f"/proc/{pid}/root/etc/hami/limits")
    # The ids that the kubelet counts are of the cards on which the ledger counts the pod.
    held = sorted(card_of(each) for holding in listed for each in holding.device_ids)
    counted = system.sql(
        "SELECT x.device_uuid FROM allocation_devices x JOIN allocations a"
        f" ON a.id = x.allocation_id WHERE a.pod_uid = '{uid}' AND a.ended_at IS NULL"
    )
    assert held == sorted(counted.split())


def _events(system: NodeSystem, pod: Json, event: str) -> list[Json]:
    return [line for line in system.log(pod, "cuda") if line["event"] == event]


def _assert_untouched(system: NodeSystem, pod: Json, process: int) -> None:
    assert system.container_pid(pod) == process
    assert len(_events(system, pod, "launched")) == 1
    status = system.get(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}")["status"]
    assert [one["restartCount"] for one in status["containerStatuses"]] == [0]
