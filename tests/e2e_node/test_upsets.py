"""A node's upsets on a real kubelet: restarts, an upgrade, a crash loop."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.system import MIB, slice_of, wait
from tests.e2e_node.node_system import NodeSystem

PRINT = (
    "while read -r key _ _ bytes _; do "
    '[ "$key" = device ] && printf \'{"event": "limits", "bytes": %s}\\n\' "$bytes"; '
    "done < /etc/hami/limits"
)
PRINT_LIMITS = ("bash", "-c", f"{PRINT}; true")
PODS = 200
WAVE = 40
"""Twice the node's slots: half of a wave waits for room."""
RESTARTS = 5
WAVE_TIMEOUT_S = 240.0
EVENT_TIMEOUT_S = 120.0


def limits_printed(system: NodeSystem, pod: Json) -> list[int]:
    """MiB, once for each life of the container whose log is kept."""
    lines = system.log(pod, "cuda")
    return [line["bytes"] // MIB for line in lines if line["event"] == "limits"]


def over(system: NodeSystem, names: list[str]) -> bool:
    phases = {pod["metadata"]["name"]: pod["status"].get("phase") for pod in system.pods()}
    failed = [name for name in names if phases.get(name) == "Failed"]
    assert not failed, [(system.pod(name) or {}).get("status") for name in failed]
    return all(phases.get(name) == "Succeeded" for name in names)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["lock", "late"])
def test_two_hundred_pods_come_while_the_agent_is_restarted_and_none_fails(
    system: NodeSystem, way: str, request: pytest.FixtureRequest
) -> None:
    """Restarted as an upgrade does: SIGTERM, and a new one when the old has ended."""
    if way == "late":
        request.getfixturevalue("late")
    assert f'way="{way}"' in system.agent.metrics()
    wrong: list[str] = []
    began_s = time.monotonic()
    for wave in range(PODS // WAVE):
        wanted = {f"wave-{wave}-{n}": 1000 + 10 * n for n in range(WAVE)}
        for name, memory_mib in wanted.items():
            pod = system.pod_like(name, slice_of(memory_mib, 5), command=PRINT_LIMITS)
            pod["spec"]["restartPolicy"] = "Never"
            assert system.create(pod).status_code == 201
        system.agent.restart()
        wait(
            lambda names=list(wanted): over(system, names),
            "the wave to have printed its limits",
            timeout_s=WAVE_TIMEOUT_S,
        )
        for name, memory_mib in wanted.items():
            pod = system.pod(name)
            assert pod is not None
            printed = limits_printed(system, pod)
            wrong += [f"{name}: {printed}"] if printed != [memory_mib] else []
    assert PODS // WAVE == RESTARTS
    measured.note(
        f"{PODS} pods by the {way} way, the agent restarted {RESTARTS} times: 0 Failed, "
        f"{len(wrong)} wrong limits, {time.monotonic() - began_s:.0f} s"
    )
    assert wrong == []
    system.delete(*(pod["metadata"]["name"] for pod in system.pods()), timeout_s=600)


@pytest.fixture
def crashing(system: NodeSystem) -> Json:
    """A container that ends as soon as it has printed its limits, for ever."""
    pod = system.pod_like(
        "crashing", slice_of(4096, 30), command=("bash", "-c", f"{PRINT}; exit 1")
    )
    pod["spec"]["restartPolicy"] = "Always"
    created = system.create(pod)
    assert created.status_code == 201
    return dict(created.json())


def test_a_crash_loop_goes_through_an_upgrade_with_tmp_wiped_and_keeps_its_limits(
    system: NodeSystem, crashing: Json, tmp_path: Path
) -> None:
    [steady] = system.run(system.pod_like("steady", slice_of(2048, 10)))
    assert system.seen_mib(steady) == [2048]
    wait(lambda: limits_printed(system, crashing), "its first life")

    def lives() -> int:
        statuses = (system.pod("crashing") or {})["status"].get("containerStatuses") or []
        return sum(status["restartCount"] for status in statuses)

    mounted = Path(system.mounts(steady)["/usr/local/vgpu/libvgpu.so"])
    system.agent.stop()
    # Others may lie there: those of earlier versions go when no answer of the kubelet's names them.
    library = system.agent.folder / "hook" / "vgpu" / mounted.name
    newer = tmp_path / "libvgpu.so"
    newer.write_bytes(library.read_bytes() + b"newer")
    before = library.stat().st_ino
    began = lives()
    system.agent.start(HAMI_NODE_AGENT_LIBRARY_PATH=str(newer))
    wait(lambda: lives() > began, "a life under the new agent", timeout_s=EVENT_TIMEOUT_S)
    os.kill(system.container_pid(steady), signal.SIGKILL)

    wait(
        lambda: [line["event"] for line in system.log(steady, "cuda")].count("launched") == 2,
        "the steady one to start again",
        timeout_s=EVENT_TIMEOUT_S,
    )
    assert library.stat().st_ino != before
    assert set(limits_printed(system, crashing)) == {4096}
    taken = [line["bytes"] for line in system.log(steady, "cuda") if line["event"] == "allocated"]
    assert taken == [2048 * MIB] * 2
    assert system.live_allocations() == 2
    system.agent.stop()
    system.agent.start()


def test_a_static_pod_that_races_granted_ones_takes_nothing_of_theirs(system: NodeSystem) -> None:
    static = system.pod_like("static", slice_of(8000, 10))
    static["metadata"]["namespace"] = "default"
    manifest = system.node.static_pods / "static.json"
    wanted = {f"granted-{number}": 1000 + 100 * number for number in range(8)}
    try:
        for number, (name, memory_mib) in enumerate(wanted.items()):
            if number == len(wanted) // 2:
                manifest.write_text(json.dumps(static))
            assert system.create(system.pod_like(name, slice_of(memory_mib, 5))).status_code == 201
        pods = {name: system.wait_for_phase(name, "Running") for name in wanted}

        assert {name: system.seen_mib(pod) for name, pod in pods.items()} == {
            name: [memory_mib] for name, memory_mib in wanted.items()
        }
        mirror = system.pod(f"static-{system.node.name}")
        statuses = (mirror or {"status": {}})["status"].get("containerStatuses") or []
        assert not [status for status in statuses if status.get("started")]
        assert system.live_allocations() == len(wanted)
    finally:
        manifest.unlink(missing_ok=True)
