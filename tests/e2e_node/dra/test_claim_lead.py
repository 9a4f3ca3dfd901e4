"""ResourceClaims that the ledger allocates, prepared by a real kubelet and our agent.

The replica of the scheduler that leads runs beside the system's own, over the same ledger.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hamicommon.dra.devices import LEDGER_TAINT, device_name
from hamicommon.k8s.annotations import FRONT_END
from hamilocal.servers.control_plane.assets import Assets
from hamilocal.supervisor.ports import LOOPBACK, free_port

from tests import measured
from tests.e2e.claims import API, CLAIMS, claim_body, claiming, device_class
from tests.e2e.system import slice_of, wait
from tests.e2e_node.conftest import RUNTIME_VARIABLE, controller_manager
from tests.e2e_node.dra.claims import TEMPLATES, descriptions
from tests.e2e_node.node_system import CARDS, NodeSystem
from tests.faults.processes import away

pytestmark = pytest.mark.e2e

CARD_MIB = 81920
SINCE = (1, 36)


@pytest.fixture
def leading(system: NodeSystem, other_runtime: Path | None, tmp_path: Path) -> Iterator[NodeSystem]:
    """The system with an agent whose cards the ledger allocates, and a scheduler that does."""
    if other_runtime is None:
        pytest.skip(f"{RUNTIME_VARIABLE} names no folder of a containerd with CDI")
    version = system.get("/version")
    if (int(version["major"]), int(version["minor"].rstrip("+"))) < SINCE:
        pytest.skip(f"Kubernetes {version['gitVersion']} has no parts of devices, 1.36 has")
    system.agent.stop()
    system.agent.start(
        HAMI_NODE_AGENT_DRA="auto",
        HAMI_NODE_AGENT_DRA_MODE="lead",
        HAMI_NODE_AGENT_CRI_SOCKET=str(system.node.socket),
        HAMI_NODE_AGENT_CDI_DIR=str(system.folder.parent / "cdi"),
    )
    system.wait_until_offered()
    made = system.api.post(f"{API}/deviceclasses", json=device_class())
    assert made.status_code in (201, 409), made.text
    replica, url = start_replica(system, tmp_path / "replica.log")
    try:
        wait(lambda: ready(url), "the leading replica", why=(tmp_path / "replica.log").read_text)
        wait(lambda: led_devices(system) == CARDS, "the cards in a ResourceSlice")
        yield system
    finally:
        system.delete_all()
        for claim in system.get(CLAIMS)["items"]:
            forget(system, claim["metadata"]["name"])
        replica.send_signal(signal.SIGTERM)
        replica.wait(timeout=60)
        wait(lambda: not descriptions(system), "the device descriptions to go")
        for template in system.get(TEMPLATES)["items"]:
            system.api.delete(f"{TEMPLATES}/{template['metadata']['name']}")
        system.agent.stop()
        system.agent.start()
        system.wait_until_offered()


@pytest.fixture
def lead_controllers(leading: NodeSystem, node_assets: Assets, tmp_path: Path) -> Iterator[None]:
    """kube-controller-manager: claims from templates, and the release of claims."""
    with controller_manager(leading, node_assets, tmp_path):
        yield


def start_replica(system: NodeSystem, log: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A scheduler like the system's own, that leads, at an address of its own."""
    pid = wait(lambda: system.pid_of("scheduler"), "the system's scheduler")
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    env = dict(each.decode().split("=", 1) for each in entries if each)
    command = [part.decode() for part in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    bind = f"{LOOPBACK}:{free_port()}"
    env |= {"HAMI_SCHEDULER_HTTP_BIND": bind, "HAMI_SCHEDULER_DRA_MODE": "lead"}
    folder = Path(f"/proc/{pid}/cwd").readlink()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command[:-1],
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    return process, f"http://{bind}"


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def led_devices(system: NodeSystem) -> int:
    slices = system.get(f"{API}/resourceslices")["items"]
    devices = [device for one in slices for device in one["spec"].get("devices", [])]
    return sum(LEDGER_TAINT in json.dumps(device.get("taints", [])) for device in devices)


def forget(system: NodeSystem, name: str) -> None:
    """As the claim controller does when no pod has it any more."""
    system.api.delete(f"{CLAIMS}/{name}")
    for path, body in (
        (f"{CLAIMS}/{name}/status", {"status": {"reservedFor": None, "allocation": None}}),
        (f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}}),
    ):
        system.api.patch(path, json=body, headers={"content-type": "application/merge-patch+json"})
    wait(lambda: system.api.get(f"{CLAIMS}/{name}").status_code == 404, f"claim {name} to go")


def create(system: NodeSystem, name: str, **wanted: object) -> None:
    """A claim and its pod, of kube-scheduler's default profile."""
    made = system.api.post(CLAIMS, json=claim_body(name, **wanted))  # type: ignore[arg-type]  # handed on
    assert made.status_code == 201, made.text
    pod = claiming(system.pod_like(name), name)
    pod["spec"]["schedulerName"] = "default-scheduler"
    assert system.create(pod).status_code == 201


def test_a_container_sees_the_slice_that_the_ledger_allocated(leading: NodeSystem) -> None:
    system = leading
    began = time.monotonic()
    create(system, "small", memory="4096Mi", cores="30")
    pod = system.wait_for_phase("small", "Running")
    took_s = time.monotonic() - began

    assert system.wrong_slice(pod, 4096, core_percent=30) == []
    row = "SELECT origin, state FROM allocations WHERE ended_at IS NULL AND pod_name = 'small'"
    wait(lambda: system.sql(row) == "claim|allocated", "the agent's report")
    card = system.sql("SELECT device_uuid FROM v_claim_holders WHERE held_until IS NULL")
    [result] = system.get(f"{CLAIMS}/small")["status"]["allocation"]["devices"]["results"]
    assert result["device"] == device_name(card)
    assert system.sql("SELECT max(attempt) FROM allocations WHERE pod_name = 'small'") == "1"
    measured.note(f"lead on a real kubelet: {took_s:.1f} s from the claim to Running")


def test_percentages_by_claim_and_limits_share_the_cards(leading: NodeSystem) -> None:
    system = leading
    quarter = CARD_MIB // 4
    for number in range(3):
        assert system.create(system.pod_like(f"l{number}", slice_of(quarter, 5))).status_code == 201
        create(system, f"c{number}", percent=25)
    for number in range(3):
        pod = system.wait_for_phase(f"l{number}", "Running")
        assert system.wrong_slice(pod, quarter, core_percent=5) == []
        pod = system.wait_for_phase(f"c{number}", "Running")
        assert system.wrong_slice(pod, quarter, core_percent=0) == []
    create(system, "most", memory=f"{2 * quarter + 1}Mi")
    wait(
        lambda: any("no available node" in text for _, text in system.events("most")),
        "the reason of most",
    )
    system.delete("most")
    system.check_invariants()


def test_old_manifests_become_claims_that_the_ledger_allocates(
    leading: NodeSystem, lead_controllers: None
) -> None:
    del lead_controllers
    system = leading
    uuid = system.sql("SELECT uuid FROM devices ORDER BY index DESC LIMIT 1")
    asked: dict[str, tuple[dict[str, object], dict[str, str], int, int]] = {
        "amounts": (slice_of(2048, 20), {}, 2048, 20),
        "part": ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 25}, {}, CARD_MIB // 4, 0),
        "card": (slice_of(1024, 5), {"nvidia.com/use-gpuuuid": uuid}, 1024, 5),
    }
    # Two that differ in who allocates would make each other's templates again.
    with away(system, "scheduler"):
        for name, (limits, chosen, _, _) in asked.items():
            pod = system.pod_like(name, limits)
            pod["spec"]["schedulerName"] = "default-scheduler"
            pod["metadata"]["annotations"] = {FRONT_END: "dra", **chosen}
            made = system.create(pod)
            assert made.status_code == 201, made.text
        for name, (_, _, memory_mib, cores) in asked.items():
            pod = system.wait_for_phase(name, "Running")
            assert system.wrong_slice(pod, memory_mib, core_percent=cores) == []
        assert list(system.limits(system.pod("card") or {})) == [uuid]
        origins = "SELECT DISTINCT origin FROM allocations WHERE ended_at IS NULL"
        assert system.sql(origins) == "claim"
        system.check_invariants()
        system.delete(*asked)
        wait(lambda: system.get(CLAIMS)["items"] == [], "the claims to go")
        wait(lambda: system.live_allocations() == 0, "the slices to be free")
