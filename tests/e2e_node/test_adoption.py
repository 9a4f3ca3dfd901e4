"""Pods that HAMi started, on a real kubelet."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.system import slice_of, wait
from tests.e2e_node.node_system import CARDS, SLOTS_PER_CARD, NodeSystem
from tests.hami.plugin import HamiPlugin, hami_annotations

NATIVE = Path(__file__).resolve().parents[2] / "native"


CARD_MIB = 81920


def past(system: NodeSystem, name: str, limits: dict[str, object]) -> Json:
    """A pod that was put on the node past every scheduler."""
    pod = system.pod_like(name, limits)
    pod["spec"] |= {"nodeName": system.node.name, "schedulerName": "somebody-else"}
    return pod


def test_hamis_pods_are_taken_over_while_they_run(system: NodeSystem) -> None:
    devices = json.loads((system.agent.folder / "fakegpu" / "config.json").read_text())["devices"]
    cards = [device["uuid"] for device in devices]
    base = system.agent.folder / "hook" / "vgpu"
    # HAMi's own library has no mark of our agent, and uses its variables.
    library = (NATIVE / "libvgpu/build/libvgpu.so").read_bytes()
    (base / "libvgpu.so.v2.10.0").write_bytes(library)
    system.agent.kill()
    wait(lambda: system.offered_slots() == 0, "the kubelet to miss our plugin")

    def pending() -> list[Json]:
        return [p for p in system.pods() if p["status"].get("phase") == "Pending"]

    plugin = HamiPlugin(cards=cards, slots=SLOTS_PER_CARD, base=base, pending=pending)
    with plugin.serving(system.node.device_plugins):
        wait(lambda: system.offered_slots() == CARDS * SLOTS_PER_CARD, "HAMi's slots on the Node")
        pods = {}
        for name, mib in (("steady", 4096), ("shaken", 6000)):
            pod = past(system, name, slice_of(mib, 30))
            written = f"{cards[0]},NVIDIA,{mib},30:;"
            pod["metadata"]["annotations"] |= hami_annotations(system.node.name, written)
            assert system.create(pod).status_code == 201
            pods[name] = system.wait_for_phase(name, "Running")
            assert system.seen_mib(pods[name]) == [mib]
    process = system.container_pid(pods["steady"])

    system.agent.start()
    system.wait_until_offered()
    os.kill(system.container_pid(pods["shaken"]), signal.SIGKILL)
    wait(
        lambda: any("hamictl adopt" in text for _, text in system.events("shaken")),
        "the restarting container to be held back",
    )

    answer = adopt(system)

    assert {row["name"]: row["outcome"] for row in answer["pods"]} == dict.fromkeys(pods, "adopted")
    assert system.sql("SELECT max(used_memory_mib), max(used_slots) FROM devices") == "10096|2"
    wait(
        lambda: (
            [line["event"] for line in system.log(pods["shaken"], "cuda")].count("launched") == 2
        ),
        "the adopted container to start again",
        timeout_s=120,
    )
    assert system.container_pid(pods["steady"]) == process
    [after] = system.run(system.pod_like("after", slice_of(CARD_MIB - 10096, 10)))
    assert system.seen_mib(after) == [CARD_MIB - 10096]
    assert system.sql("SELECT max(used_memory_mib) FROM devices") == str(CARD_MIB)
    system.check_invariants()
    measured.note("HAMi's plugin replaced: 2 running pods adopted, 0 restarted by it")


def adopt(system: NodeSystem) -> Json:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "hamictl"), "adopt", "--apply", "-o", "json"],
        env={"HAMI_FOLDER": str(system.folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))
