"""Pods that misbehave on their nodes, beside one that works: by a seed.

Their programs bypass the library, fork, ignore and send signals, and lie about their names; their
folders on the host are theirs too, as HAMi's containers have them. The agents keep running, the
other pod's limits stay the same and hold, the ledger is true, and a pod that takes more than its
slice is reported so.
"""

import json
import random
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hami_node_agent.adapters.host.removal import REMOVING
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.conftest import running_system
from tests.e2e.hostile.hostile_hands import Decoys, Hands
from tests.e2e.hostile.test_limits_outside import read_states, wait_until_allocated
from tests.e2e.system import System, a_pod, hamictl, slice_of, wait
from tests.native.machine import FAKEGPU

HONEST_MIB = 2048
BATCH = 20
"""Pods at a time."""
ACTS = 4
"""In the folder of each."""
TAKEN = 8 * 1024**3
PASSWD = Path("/etc/passwd")


@dataclass(frozen=True, kw_only=True)
class Program:
    """Behaviour of one container of a hostile pod."""

    argv: tuple[str, ...]
    limits: Mapping[str, object] = field(default_factory=lambda: slice_of(256, 2))
    state: str = ""
    """State in which it is reported; empty if it stays held."""


def shell(script: str, **more: object) -> Program:
    return Program(argv=("sh", "-c", script), **more)  # type: ignore[arg-type]


HELD = [
    Program(argv=("vgpu-probe",)),
    shell("for i in 1 2 3; do vgpu-probe --no-launch & done; wait"),
    shell("trap '' TERM INT HUP; vgpu-probe --no-launch & wait; wait"),
    shell("while :; do vgpu-probe --no-launch & sleep 1; kill -9 $!; done"),
    shell("vgpu-probe --no-launch & p=$!; while :; do kill -STOP $p; sleep 1; kill -CONT $p; done"),
    shell("setsid vgpu-probe --no-launch & sleep 600"),
    shell(
        "CUDA_DISABLE_CONTROL=1 CUDA_DEVICE_MEMORY_LIMIT_0=80g CUDA_DEVICE_MEMORY_SHARED_CACHE=/x "
        f"GPU_CORE_UTILIZATION_POLICY=disable vgpu-probe --bytes {TAKEN}; sleep 600"
    ),
    shell("exit 3"),
]
BEYOND = [
    shell(
        "exec unshare -m sh -c 'mount --bind /dev/null /etc/ld.so.preload && "
        f"exec vgpu-probe --no-launch --bytes {TAKEN}'",
        state="exceeded",
    ),
    shell(
        "FAKEGPU_VISIBLE_DEVICES=all exec vgpu-probe --no-launch --bytes 1048576",
        limits={},
        state="bypassed",
    ),
]
VARIABLES = [
    *("CUDA_DISABLE_CONTROL", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_SM_LIMIT"),
    *("CUDA_DEVICE_MEMORY_SHARED_CACHE", "CUDA_TASK_PRIORITY", "GPU_CORE_UTILIZATION_POLICY"),
    *("LD_PRELOAD", "LD_AUDIT", "NVIDIA_VISIBLE_DEVICES", "HARMLESS"),
]
VALUES = ["", "0", "-1", "true", "80g", "all", "/dev/null", "9" * 400, "\u202e\N{GRINNING FACE}"]
HOSTILE_NAME = ") Z 1 1 ("
"""Name of a program; it stands unescaped in /proc/<pid>/stat."""


@dataclass
class Attempts:
    """Create hostile pods, and count their attempts."""

    system: System
    decoys: Decoys
    chance: random.Random
    beyond: bool
    """Some take more than their slice: those are waited for."""
    number: int = 0
    done: Counter[str] = field(default_factory=Counter)

    def batch(self, size: int) -> None:
        """Run a batch of pods from creation over their damage and its report to their end."""
        made = {name: program for name, program in map(self._create, range(size)) if program}
        for name in made:
            self._wait_until_placed(name)
        self._hands_on([*made])
        for name, program in made.items():
            if program.state:
                self._wait_until_reported(name, program.state)
        # Once more: some by now have a look of the agent behind them, and some go in the middle.
        self._hands_on([*made])
        for name in made:
            if self.chance.random() < 0.5:
                self.system.force_delete(name)
        self.system.delete(*made)

    def _create(self, _: int) -> tuple[str, Program | None]:
        self.number += 1
        name = f"hostile-{self.number}"
        often = 0.15 if self.beyond else 0.0
        program = self.chance.choice(BEYOND if self.chance.random() < often else HELD)
        argv = program.argv
        if self.chance.random() < 0.1 and not program.state:
            argv = (str(self.decoys.folder / HOSTILE_NAME),)
        pod = a_pod(name, program.limits, command=argv)
        chosen = self.chance.sample(VARIABLES, self.chance.choice([0, 0, 0, 1, 3]))
        env = [{"name": each, "value": self.chance.choice(VALUES)} for each in chosen]
        if not program.state:
            pod["spec"]["containers"][0]["env"] = env
        answer = self.system.create(pod)
        self.done["refused" if answer.status_code == 403 else "created"] += 1
        assert answer.status_code in (201, 403), answer.text[:1000]
        return name, program if answer.status_code == 201 else None

    def _wait_until_placed(self, name: str) -> None:
        def status() -> Json:
            pod = self.system.pod(name)
            assert pod is not None, f"{name} is gone"
            return dict(pod.get("status") or {})

        wait(
            lambda: status().get("phase") in ("Running", "Failed", "Succeeded"),
            f"{name} to have begun",
            why=lambda: str(status()),
        )

    def _wait_until_reported(self, name: str, state: str) -> None:
        wait(
            lambda: state in read_states(self.system, name),
            f"{name} to be reported as {state}",
            why=lambda: str(read_states(self.system, name)),
        )
        self.done[state] += 1

    def _hands_on(self, names: list[str]) -> None:
        """On all folders of these pods."""
        for name in names:
            pod = self.system.pod(name)
            uid = "" if pod is None else pod["metadata"]["uid"]
            for folder in self.system.folder.glob(f"nodes/*/hook/vgpu/containers/{uid or '-'}_*"):
                with (
                    suppress(FileNotFoundError),
                    closing(Hands(folder, self.decoys, self.chance)) as hands,
                ):
                    for _ in range(ACTS):
                        self.done[hands.act()] += 1


def limits_of(system: System, uid: str) -> dict[str, list[str]]:
    """The limits files of a pod; entries of the feedback loop are not included."""
    feedback = ("utilization_switch ", "priority_block ")
    regions = system.folder.glob(f"nodes/*/hook/vgpu/containers/{uid}_*/*.cache")
    return {
        str(path): [line for line in path.read_text().splitlines() if not line.startswith(feedback)]
        for region in regions
        for path in system.folder.glob(f"nodes/*/agent/limits/{region.stem}/limits")
    }


def agents(system: System) -> dict[str, int | None]:
    """Pids of the agents."""
    services = json.loads((system.folder / "state.json").read_text())["services"]
    return {
        name: each.get("pid") for name, each in services.items() if name.startswith("node-agent-")
    }


def troubles(system: System) -> list[str]:
    """Return the agents' log lines of unexpected failures."""
    return [
        f"{path.name}: {line[:2000]}"
        for path in system.folder.glob("logs/node-agent-*.log")
        for line in path.read_text(errors="replace").splitlines()
        if "Failed to process an item" in line or ("Traceback" in line and '"logger":"hami' in line)
    ]


def folders(system: System) -> set[str]:
    """Return the containers' folders on the nodes, those that wait for removal included."""
    found = (
        each
        for pattern in (
            *("hook/vgpu/containers/*", f"hook/vgpu/containers/{REMOVING}/*"),
            *("agent/limits/*", f"agent/limits/{REMOVING}/*"),
        )
        for each in system.folder.glob(f"nodes/*/{pattern}")
    )
    return {str(each) for each in found if each.name != REMOVING}


def state_of(path: Path) -> tuple[int, int, bytes]:
    """A file that no attempt may change."""
    found = path.lstat()
    assert stat.S_ISREG(found.st_mode)
    return stat.S_IMODE(found.st_mode), found.st_ino, path.read_bytes()


@pytest.fixture
def decoys(tmp_path: Path) -> Decoys:
    tmp_path.chmod(0o755)
    folder = tmp_path / "decoys-of-this-case"
    folder.mkdir()
    return Decoys(folder)


@pytest.fixture
def fresh(cluster_kind: str) -> Iterator[System]:
    """A system of this module, for its hundreds of pods."""
    with running_system(cluster_kind) as started:
        yield started


def test_a_few_hostile_pods_change_nothing_for_others(
    system: System, decoys: Decoys, pytestconfig: pytest.Config
) -> None:
    play(system, decoys, pytestconfig, pods=3, beyond=False)


@pytest.mark.slow
def test_hundreds_of_hostile_pods_change_nothing_for_others(
    fresh: System, decoys: Decoys, pytestconfig: pytest.Config
) -> None:
    play(fresh, decoys, pytestconfig, pods=500, beyond=True)


def play(
    system: System, decoys: Decoys, pytestconfig: pytest.Config, *, pods: int, beyond: bool
) -> None:
    seed = str(pytestconfig.getoption("--seed", default="") or "1")
    (decoys.folder / HOSTILE_NAME).symlink_to(FAKEGPU / "vgpu-probe")
    passwd, serving, logged = state_of(PASSWD), agents(system), troubles(system)
    [pod] = system.run(a_pod("honest", slice_of(HONEST_MIB, 10)))
    honest = str(pod["metadata"]["uid"])
    wait_until_allocated(system, "honest")
    limits, there = limits_of(system, honest), folders(system)
    assert len(limits) == 1
    attempts = Attempts(system, decoys, random.Random(seed), beyond)

    while attempts.number < pods:
        attempts.batch(min(BATCH, pods - attempts.number))
        so_far = f"seed {seed}, {attempts.number} pods, {dict(attempts.done)}"
        assert agents(system) == serving, so_far
        assert limits_of(system, honest) == limits, so_far
        decoys.check()
        assert state_of(PASSWD) == passwd, so_far
    measured.note(f"{attempts.number} hostile pods: {dict(attempts.done)}")

    wait(lambda: read_states(system, "honest") == {"enforced"}, "the honest pod to be enforced")
    wait(
        lambda: system.ledger_difference() is None,
        "ledger = pods",
        why=lambda: str(system.ledger_difference()),
    )
    wait(
        lambda: folders(system) <= there,
        "the tenants' trees to be removed",
        why=lambda: str(folders(system) - there),
    )
    hamictl(system.folder, "db", "check")
    system.check_invariants()
    decoys.check()
    assert troubles(system) == logged
