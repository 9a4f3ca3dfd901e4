"""The way of a pod, seen from outside: asked for, placed, held to its slice, and its usage."""

import json
import re
import time

import httpx
import pytest

from tests import measured
from tests.e2e.system import MIB, System, a_pod, slice_of, wait


def test_a_pod_sees_its_slice_and_cannot_take_one_byte_more(system: System) -> None:
    [pod] = system.run(a_pod("one", slice_of(4096, 30)))

    lines = system.wait_for_log(pod, "cuda", "running")

    [device] = [line for line in lines if line["event"] == "device"]
    assert device["total_bytes"] == device["nvml_total_bytes"] == 4096 * MIB
    [allocated] = [line for line in lines if line["event"] == "allocated"]
    assert allocated["bytes"] == 4096 * MIB
    [refused] = [line for line in lines if line["event"] == "refused"]
    assert refused["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert any(line["event"] == "launched" for line in lines)


def test_every_container_is_held_to_its_own_slice(system: System) -> None:
    parts = {"big": slice_of(10240, 20), "small": slice_of(2048, 10)}
    [pod] = system.run(a_pod("two", containers=parts))

    for name, memory_mib in (("big", 10240), ("small", 2048)):
        lines = system.wait_for_log(pod, name, "running")
        assert [x["bytes"] for x in lines if x["event"] == "allocated"] == [memory_mib * MIB]


def test_two_cards_are_two_slices_on_one_node(system: System) -> None:
    [pod] = system.run(a_pod("cards", slice_of(6000, count=2)))

    lines = system.wait_for_log(pod, "cuda", "running")

    devices = [line for line in lines if line["event"] == "device"]
    assert len({device["uuid"] for device in devices}) == 2
    assert {device["total_bytes"] for device in devices} == {6000 * MIB}


def test_memory_in_percent_is_of_the_card(system: System) -> None:
    [pod] = system.run(a_pod("half", {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}))

    lines = system.wait_for_log(pod, "cuda", "running")

    assert [x["total_bytes"] for x in lines if x["event"] == "device"] == [40960 * MIB]


def test_an_init_container_runs_first_on_a_slice_of_its_own(system: System) -> None:
    [pod] = system.run(a_pod("init", slice_of(2048), init=slice_of(8192)))

    first = system.wait_for_log(pod, "init", "refused")
    then = system.wait_for_log(pod, "cuda", "running")

    assert [x["bytes"] for x in first if x["event"] == "allocated"] == [8192 * MIB]
    assert [x["bytes"] for x in then if x["event"] == "allocated"] == [2048 * MIB]


def test_the_annotations_are_those_that_hami_writes(system: System) -> None:
    [pod] = system.run(a_pod("mirror", slice_of(3000, 30)))

    annotations = pod["metadata"]["annotations"]
    uuid = system.sql(
        "SELECT device_uuid FROM allocation_devices JOIN allocations ON id = allocation_id"
        f" WHERE pod_uid = '{pod['metadata']['uid']}'"
    )
    assert annotations["hami.io/vgpu-devices-allocated"] == f"{uuid},NVIDIA,3000,30:;"
    assert annotations["hami.io/vgpu-devices-to-allocate"] == f"{uuid},NVIDIA,3000,30:;"
    assert annotations["hami.io/vgpu-node"] == pod["spec"]["nodeName"]
    assert annotations["hami.io/bind-phase"] in ("allocating", "success")
    assert int(annotations["hami.io/bind-time"]) >= int(annotations["hami.io/vgpu-time"]) - 1
    assert annotations["hami.io/grant"].count(".") == 1


def test_nodes_carry_hamis_register_annotation(system: System) -> None:
    for node in system.get("/api/v1/nodes")["items"]:
        registered = json.loads(node["metadata"]["annotations"]["hami.io/node-nvidia-register"])

        assert [device.get("index", 0) for device in registered] == [0, 1, 2, 3]
        assert {device["devmem"] for device in registered} == {81920}
        assert {device["count"] for device in registered} == {10}
        assert all(device["health"] for device in registered)
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "40"


def test_a_pod_that_fits_nowhere_gets_the_reason(system: System) -> None:
    assert system.create(a_pod("huge", slice_of(100_000))).status_code == 201

    reason = system.wait_for_reason("huge")

    assert "0/3 nodes are available" in reason
    assert "4/4 CardInsufficientMemory" in reason
    wait(
        lambda: [m for r, m in system.events("huge") if r == "FilteringFailed"],
        "the event FilteringFailed",
    )


def test_an_exclusive_card_is_shared_with_nobody(system: System) -> None:
    pods = [a_pod(f"whole-{number}", {"nvidia.com/gpu": 1}) for number in range(12)]
    system.run(*pods)
    assert system.create(a_pod("late", slice_of(1))).status_code == 201

    assert "CardInsufficientMemory" in system.wait_for_reason("late")
    assert system.sql("SELECT max(used_slots) FROM devices") == "1"


def test_freed_capacity_goes_to_the_pod_that_waits(system: System) -> None:
    system.run(*(a_pod(f"full-{number}", {"nvidia.com/gpu": 4}) for number in range(3)))
    system.create(a_pod("waiting", {"nvidia.com/gpu": 1}))
    system.wait_for_reason("waiting")

    system.delete("full-1")

    system.wait_for_phase("waiting", "Running")


def test_a_pod_that_ended_gives_its_slices_back(system: System) -> None:
    pod = a_pod("short", slice_of(4096), command=("vgpu-probe", "--once"))
    pod["spec"]["restartPolicy"] = "Never"
    assert system.create(pod).status_code == 201

    system.wait_for_phase("short", "Succeeded")

    wait(
        lambda: system.sql("SELECT count(*) FROM allocations WHERE ended_at IS NULL") == "0",
        "the release",
    )


def test_the_ledger_knows_who_held_which_slice_when(system: System) -> None:
    [pod] = system.run(a_pod("held", slice_of(5000, 25)))
    system.delete("held")

    where = f"WHERE pod_uid = '{pod['metadata']['uid']}'"
    middle = f"(SELECT allocated_at FROM allocations {where})"
    row = system.sql(
        f"SELECT pod_name, container_name, memory_mib, core_percent FROM allocations_at({middle})"
        f" {where}"
    )
    assert row == "held|cuda|5000|25"
    wait(
        lambda: system.sql(f"SELECT count(*) FROM allocations_at(now()) {where}") == "0",
        "the slice to be free",
    )
    states = system.sql(f"SELECT state FROM allocation_events {where} ORDER BY sequence")
    assert states.split()[:2] == ["binding", "allocated"]


@pytest.mark.parametrize(("node", "locked"), [("node-0", set()), ("node-2", {"lock"})])
def test_one_trace_goes_from_admission_to_the_first_kernel(
    system: System, node: str, locked: set[str]
) -> None:
    """On a node that binds late, and on the one that takes the node lock."""
    given = a_pod(f"traced-on-{node}", slice_of(1000))
    given["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    [pod] = system.run(given)
    admission = pod["metadata"]["annotations"]["hami.io/traceparent"].split("-")[1]

    decided = {"admission", "filter", "place", "bind", "allocate"} | locked

    wait(
        lambda: system.spans_since(admission) >= {*decided, "first-kernel"},
        "admission, filter, bind, allocate and first-kernel in linked traces",
        why=lambda: str(system.spans_since(admission)),
    )


def test_prometheus_shows_the_slices_under_hamis_names(system: System) -> None:
    import httpx

    [pod] = system.run(a_pod("measured", slice_of(4096, 30)))
    system.wait_for_log(pod, "cuda", "running")

    def cluster() -> bool:
        text = httpx.get(system.described["metrics_url"]).text
        return "hami_vgpu_memory_allocated_bytes" in text and f"{4096 * MIB:.10g}" in _plain(text)

    wait(cluster, "the cluster's metrics")
    agent = next(
        each for each in system.described["node_agents"] if each["node"] == pod["spec"]["nodeName"]
    )

    def node() -> bool:
        text = httpx.get(agent["metrics_url"]).text
        return "hami_vgpu_memory_limit_bytes" in text and 'pod="measured"' in text

    wait(node, "the node's metrics")
    wait(
        lambda: (
            system.sql(
                "SELECT count(*) FROM usage_samples"
                f" WHERE pod_uid = '{pod['metadata']['uid']}'"
                f" AND memory_used_bytes = {4096 * MIB}"
            )
            != "0"
        ),
        "a usage sample in the ledger",
    )


def _plain(text: str) -> str:
    """Numbers of an exposition without exponents."""
    values = [line.rpartition(" ")[2] for line in text.splitlines() if not line.startswith("#")]
    return " ".join(f"{float(value):.10g}" for value in values if value)


def test_usage_follows_a_program_that_allocates_computes_and_ends(system: System) -> None:
    """The delay is printed; on a quiet machine it is less than two seconds."""
    assert system.create(a_pod("follow", slice_of(4096, 30))).status_code == 201

    def is_printed() -> bool:
        found = system.pod("follow")
        return found is not None and any(
            line["event"] == "allocated" for line in system.log(found, "cuda")
        )

    def is_stored(condition: str) -> bool:
        count = system.sql(
            "SELECT count(*) FROM usage_samples WHERE pod_name = 'follow' AND sampled_at > now()"
            f" - interval '1 minute' AND memory_limit_bytes = {4096 * MIB} AND {condition}"
        )
        return count != "0"

    wait(is_printed, "the program to allocate")
    began_s = time.monotonic()
    wait(lambda: used_bytes(system) == [4096.0 * MIB], "Prometheus to show what it holds")
    shown_s = time.monotonic() - began_s
    wait(lambda: is_stored(f"memory_used_bytes = {4096 * MIB}"), "Postgres to have it")
    stored_s = time.monotonic() - began_s
    wait(
        lambda: is_stored("core_percent >= 0 AND core_limit_percent = 30"), "its cores to be known"
    )

    system.delete("follow")
    began_s = time.monotonic()
    wait(lambda: used_bytes(system) in ([], [0.0]), "Prometheus to show that it holds nothing")
    freed_s = time.monotonic() - began_s
    measured.note(
        f"usage after the event: {shown_s:.1f} s in Prometheus, {stored_s:.1f} s in Postgres,"
        f" {freed_s:.1f} s after the end"
    )


def used_bytes(system: System) -> list[float]:
    """`hami_vgpu_memory_used_bytes` of the pod, over all nodes."""
    found: list[float] = []
    for node in system.described["node_agents"]:
        text = httpx.get(str(node["metrics_url"])).text
        lines = re.findall(r"^hami_vgpu_memory_used_bytes\{(.*)\} (\S+)$", text, re.MULTILINE)
        found += [float(value) for labels, value in lines if 'pod="follow"' in labels]
    return found
