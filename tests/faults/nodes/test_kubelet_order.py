"""The kubelet's order shuffled: no container ever starts with another's limits.

Allocate does not name its pod (HAMi#3096). Waves of pods of many shapes come while those of the
previous wave are deleted, so device ids are assigned again immediately. Each kubelet admits the
pods of a window in any order; pods that bypassed the scheduler take devices in between. The
scheduler ends a pod that got another one's answer, and the kubelet refuses one whose answer is
gone; the crowd makes another, as a controller does. With `locks=lost` Redis repeatedly forgets
every node lock, so many pods are between bind and Allocate at the same time and only
PreStartContainer can distinguish them.
"""

import contextlib
import copy
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import redis
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.conftest import running_system
from tests.e2e.system import MIB, System, a_pod, slice_of, wait

LIMITS = "/etc/hami"
PRINTED = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Got:
    """One container's process."""

    node: str
    pod_uid: str
    container: str
    env: dict[str, str]
    limits: frozenset[str]
    """The lines of its limits file that name a card."""
    seen_mib: frozenset[int]
    """Memory of the cards as the program in it sees it, by CUDA and by NVML."""
    printed: str
    """The beginning of its log, for the message of a failed case."""

    def has_anothers(self, granted: frozenset[str]) -> str:
        """Describe foreign or missing amounts; empty from the container's first moment if none."""
        if sorted(map(_amounts, self.limits)) != sorted(map(_amounts, granted)):
            return f"limits {sorted(self.limits)}, granted {sorted(granted)}"
        sizes = frozenset(int(line.split()[3]) // MIB for line in granted)
        if not self.seen_mib <= sizes:
            return (
                f"sees {sorted(self.seen_mib)} MiB, granted {sorted(sizes)}; "
                f"it printed {self.printed!r} and has {self.env}"
            )
        return ""

    def differs_from(self, granted: frozenset[str]) -> str:
        """Difference from the ledger's grant; empty if there is none."""
        cards = frozenset(line.split()[1] for line in granted)
        visible = frozenset(self.env.get("NVIDIA_VISIBLE_DEVICES", "").split(","))
        if self.limits != granted:
            return f"limits {sorted(self.limits)}, granted {sorted(granted)}"
        if visible != cards:
            return f"sees {sorted(visible)}, granted {sorted(cards)}"
        return self.has_anothers(granted)


def running_containers(system: System) -> Iterator[Got]:
    """Return every container with cards whose process runs now."""
    for file in system.folder.glob("nodes/*/kubelet/pods/*/containers/*/*.pid"):
        pods = file.parents[3]
        with contextlib.suppress(OSError, ValueError):
            pid = int(file.read_text().split()[2])
            env = _environment(pid)
            if "NVIDIA_VISIBLE_DEVICES" not in env:
                continue
            container, uid = file.parent.name, file.parents[2].name
            log = (file.parents[2] / f"{container}.log").read_text()
            yield Got(
                node=pods.parents[1].name,
                pod_uid=uid,
                container=container,
                env=env,
                limits=_limits(pid, file),
                seen_mib=_seen_mib(log),
                printed=log[:PRINTED],
            )


def granted_containers(system: System) -> dict[tuple[str, str, str], frozenset[str]]:
    """(node, pod uid, container) -> the lines of its limits file, by the ledger's live rows."""
    rows = system.sql(
        "SELECT a.node, a.pod_uid, x.container_name, x.device_uuid, x.memory_mib, x.core_percent"
        " FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id"
        " WHERE a.ended_at IS NULL"
    ).splitlines()
    granted: dict[tuple[str, str, str], set[str]] = {}
    for row in rows:
        node, uid, container, card, memory_mib, core_percent = row.split("|")
        line = f"device {card} memory_bytes {int(memory_mib) * MIB} core_percent {core_percent}"
        granted.setdefault((node, uid, container), set()).add(line)
    return {key: frozenset(lines) for key, lines in granted.items()}


def _amounts(line: str) -> tuple[str, ...]:
    return tuple(line.split()[2:])


def _environment(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    pairs = (entry.decode().partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


def _limits(pid: int, pid_file: Path) -> frozenset[str]:
    arguments = pid_file.with_suffix(".launch").read_text().split("\0")
    host = Path(arguments[arguments.index(LIMITS) - 1])
    own = Path(f"/proc/{pid}/root{LIMITS}")
    folder = own if "rootfs" in arguments else host
    lines = (folder / "limits").read_text().splitlines()
    return frozenset(line for line in lines if line.startswith("device "))


def _seen_mib(log: str) -> frozenset[int]:
    found: set[int] = set()
    for line in log.splitlines():
        if line.startswith('{"event":"device"'):
            event = json.loads(line)
            found |= {event["total_bytes"] // MIB, event["nvml_total_bytes"] // MIB}
    return frozenset(found)


NODES = 4
CARDS = 16
SEED = 3096
WINDOW_MS = 200
CREATORS = 8
UNMANAGED_PERCENT = 10
LOST_INTERVAL_S = 0.02
FULL_MIB = 26_000
"""Three on each card: 100 pods, and the 100 that go at the same moment, nearly fill the 64."""
WHOLE_MIB = 52_000
"""One on each card: 30 pods, and the 30 that go at the same moment, nearly fill them."""
WAVE_S = 300.0
EMPTY_S = 120.0
"""200 pods end together; well below the 5 min after which slices are freed unconfirmed."""
RECOVERED_S = 30.0
"""Promise LIVE-2."""
PROBE = ("vgpu-probe", "--no-launch")


@dataclass(slots=True)
class Crowd:
    """The pods of the whole run, and what their containers had."""

    system: System
    chance: random.Random
    template_mib: int = 0
    """Memory of pods of one shape; 0: the pods have many shapes."""
    managed: list[str] = field(default_factory=list)
    """Names of the wave's pods that came through the scheduler."""
    bypassing: list[str] = field(default_factory=list)
    """Names of those that bypassed it."""
    made: int = 0
    bypassed: int = 0
    compared: set[tuple[str, str]] = field(default_factory=set)
    """(pod uid, container) of every container whose process was looked at."""
    made_of: dict[str, Json] = field(default_factory=dict)
    """By name: the pods that came through the scheduler, as their controller makes them."""
    ended: int = 0
    """Pods that the scheduler ended, because they had another one's answer."""
    refused: int = 0
    """Pods that their kubelets refused, because another one had their answer."""
    bypassing_ended: int = 0
    wrong: list[str] = field(default_factory=list)

    def come(self, count: int) -> None:
        """A wave: the one before goes at the same moment."""
        before = [*self.managed, *self.bypassing]
        self.managed, self.bypassing = [], []
        jobs: list[Callable[[], object]] = [partial(self._delete, name) for name in before]
        for number in range(count):
            name = f"pod-{self.made + number}"
            if self.chance.randrange(100) < UNMANAGED_PERCENT:
                self.bypassing.append(name)
                node = f"node-{self.chance.randrange(NODES)}"
                way = self.chance.choice((self._create_pinned, self._bound_by_another))
                pod = a_pod(name, {"nvidia.com/gpu": 1}, command=PROBE)
                jobs.append(partial(way, pod, node))
            else:
                self.managed.append(name)
                self.made_of[name] = self._pod(name)
                jobs.append(partial(self._create, self.made_of[name]))
        self.made += count
        self.bypassed += len(self.bypassing)
        self.chance.shuffle(jobs)
        with ThreadPoolExecutor(CREATORS) as pool:
            for done in [pool.submit(job) for job in jobs]:
                done.result()

    def _pod(self, name: str) -> Json:
        """One container, two, or one with two cards, every size its own; or all alike."""
        if self.template_mib:
            return a_pod(name, slice_of(self.template_mib, 1), command=PROBE)
        size_mib = 1024 + self.chance.randrange(4096)
        shape = self.chance.randrange(10)
        if shape == 0:
            both = {"left": slice_of(size_mib, 1), "right": slice_of(size_mib + 7, 2)}
            return a_pod(name, containers=both, command=PROBE)
        return a_pod(name, slice_of(size_mib, 1, count=2 if shape == 1 else 1), command=PROBE)

    def _create(self, pod: Json) -> None:
        """Create the pod as a controller does: retry while API server or webhook is busy."""

        def is_created() -> bool:
            answer = self.system.create(pod)
            retry = answer.status_code == 429 or answer.status_code >= 500
            # 409: an earlier attempt was taken, and its answer was lost.
            assert retry or answer.status_code in (201, 409), answer.text
            return not retry

        wait(is_created, f"{pod['metadata']['name']} to be taken")

    def _create_pinned(self, pod: Json, node: str) -> None:
        """Create it with spec.nodeName and another scheduler, which admission allows."""
        pod["spec"] |= {"nodeName": node, "schedulerName": "another"}
        self._create(pod)

    def _bound_by_another(self, pod: Json, node: str) -> None:
        """Bind it by another scheduler, which ignores our counts."""
        pod["spec"]["schedulerName"] = "another"
        self._create(pod)
        name = pod["metadata"]["name"]
        body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
        path = f"/api/v1/namespaces/default/pods/{name}/binding"
        answer = self.system.api.post(path, json=body)
        assert answer.status_code == 201, answer.text

    def _delete(self, name: str) -> None:
        self.system.api.request(
            "DELETE", f"/api/v1/namespaces/default/pods/{name}", json={"gracePeriodSeconds": 0}
        )

    def is_settled(self) -> bool:
        """Return whether every pod of the wave runs; look at all processes on the way."""
        self.look()
        pods = {pod["metadata"]["name"]: pod for pod in self.system.pods()}
        self.bypassing_ended += sum(name not in pods for name in self.bypassing)
        self.bypassing = [name for name in self.bypassing if name in pods]
        return not self._replace(pods) and all(_runs(pods[name]) for name in self.managed)

    def _replace(self, pods: dict[str, Json]) -> bool:
        """Make another pod for each that was ended or refused; False: there was none."""
        lost = [name for name in self.managed if name not in pods or _over(pods[name])]
        for name in lost:
            self.ended += name not in pods
            self.refused += name in pods
            self._delete(name)
            another = f"{name.partition('.')[0]}.{self.ended + self.refused}"
            body = copy.deepcopy(self.made_of[name])
            body["metadata"]["name"] = another
            self.made_of[another] = body
            self.managed[self.managed.index(name)] = another
            self._create(body)
        return bool(lost)

    def look(self) -> None:
        """Compare every process with the ledger's row, at any moment."""
        gots = list(running_containers(self.system))
        granted = granted_containers(self.system)
        bypassing = {
            pod["metadata"]["uid"]
            for pod in self.system.pods()
            if pod["metadata"]["name"] in self.bypassing
        }
        for got in gots:
            if got.pod_uid in bypassing:
                self.wrong.append(f"{got.pod_uid} bypassed the scheduler and runs")
            row = granted.get((got.node, got.pod_uid, got.container))
            if row is None:
                continue
            if why := got.has_anothers(row):
                self.wrong.append(f"{got.pod_uid}/{got.container}: {why}")
            self.compared.add((got.pod_uid, got.container))

    def check(self) -> None:
        """Wait until every container has its row, on its cards (LIVE-2)."""
        self.look()
        assert self.wrong == []
        wait(
            lambda: not self.differences(),
            "containers = ledger",
            timeout_s=RECOVERED_S,
            why=lambda: str(self.differences()[:5]),
        )
        for pod in self.system.pods():
            name = pod["metadata"]["name"]
            assert name not in self.bypassing or not _runs(pod), f"{name} bypassed us and runs"
        self.system.check_invariants()

    def differences(self) -> list[str]:
        """Differences between the wave's containers and the ledger."""
        granted = granted_containers(self.system)
        here = {(got.pod_uid, got.container): got for got in running_containers(self.system)}
        found = []
        for pod in self.system.pods():
            uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
            if name not in self.managed or _over(pod):
                continue
            for container in pod["spec"]["containers"]:
                found.append(_difference(here.get((uid, container["name"])), name, granted))
        return [why for why in found if why]


def _difference(
    got: Got | None, name: str, granted: dict[tuple[str, str, str], frozenset[str]]
) -> str:
    if got is None:
        return f"{name} runs without a process"
    row = granted.get((got.node, got.pod_uid, got.container))
    if row is None:
        return f"{name} runs without a grant on {got.node}"
    why = got.differs_from(row)
    return why and f"{name}/{got.container}: {why}"


def _runs(pod: Json) -> bool:
    states = [status.get("state", {}) for status in pod["status"].get("containerStatuses") or []]
    return bool(pod["status"].get("phase") == "Running") and all(
        "running" in state for state in states
    )


def _over(pod: Json) -> bool:
    return bool(pod["status"].get("phase") == "Failed")


@contextmanager
def forgetting(url: str) -> Iterator[None]:
    """Make Redis lose every node lock repeatedly inside the block."""
    done = threading.Event()

    def forget() -> None:
        with redis.Redis.from_url(url) as client:
            while not done.wait(LOST_INTERVAL_S):
                for key in client.scan_iter("hami:nodelock:*"):
                    client.delete(key)

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.fixture(scope="module")
def shuffled() -> Iterator[System]:
    """One for all cases: each ends with an empty ledger."""
    flags = ("--nodes", str(NODES), "--gpus", str(CARDS), "--node-policy", "spread")
    flags += ("--binding", "lock")
    # A lock that expires between bind and Allocate is one that is lost.
    environment = {"HAMI_SCHEDULER_LOCK_S": str(WAVE_S)}
    kubelet = [f"--kubelet-flag=--shuffle-window-ms={WINDOW_MS}", f"--kubelet-flag=--seed={SEED}"]
    with running_system("emulator", *flags, *kubelet, environment=environment) as found:
        yield found


@pytest.mark.parametrize(
    ("locks", "template_mib", "waves", "size"),
    [
        pytest.param("held", 0, 2, 30, id="60-pods"),
        pytest.param("lost", 0, 2, 30, id="60-pods-without-locks"),
        pytest.param("held", WHOLE_MIB, 2, 30, id="60-pods-of-one-template"),
        pytest.param(
            "held", FULL_MIB, 2, 100, id="200-pods-of-one-template", marks=pytest.mark.slow
        ),
        pytest.param("held", 0, 5, 200, id="1000-pods", marks=pytest.mark.slow),
        pytest.param("lost", 0, 5, 200, id="1000-pods-without-locks", marks=pytest.mark.slow),
    ],
)
def test_no_container_starts_with_anothers_limits(
    shuffled: System, locks: str, template_mib: int, waves: int, size: int
) -> None:
    system = shuffled
    crowd = Crowd(system=system, chance=random.Random(SEED), template_mib=template_mib)
    began_s = time.monotonic()
    if locks == "lost":
        with forgetting(str(system.described["redis_url"])):
            _waves(crowd, waves, size)
    else:
        _waves(crowd, waves, size)
    took_s = time.monotonic() - began_s
    measured.note(
        f"Kubelet order shuffled, locks {locks}, {template_mib or 'many'} MiB: {crowd.made} "
        f"pods ({crowd.bypassed} past the scheduler) on {NODES} nodes in {took_s:.0f} s; "
        f"{len(crowd.compared)} containers compared with their rows, {crowd.ended} pods ended and "
        f"{crowd.refused} refused by their kubelets, each replaced, {crowd.bypassing_ended} that "
        f"bypassed the scheduler ended, {len(crowd.wrong)} with another's limits"
    )
    # An answer is lost to a pod that bypassed the scheduler, and without locks to any other.
    assert crowd.ended + crowd.refused <= crowd.bypassed or locks == "lost"
    system.delete(*(pod["metadata"]["name"] for pod in system.pods()), timeout_s=WAVE_S)
    live = "SELECT pod_name, node, state, reason FROM allocations WHERE ended_at IS NULL"
    wait(
        lambda: system.sql(live) == "",
        "the ledger to be empty",
        timeout_s=EMPTY_S,
        why=lambda: system.sql(live),
    )
    system.check_invariants()


def _waves(crowd: Crowd, waves: int, size: int) -> None:
    for _ in range(waves):
        crowd.come(size)
        wait(
            crowd.is_settled,
            "every pod of the wave to run",
            timeout_s=WAVE_S,
            why=lambda: str(
                [
                    (pod["metadata"]["name"], pod["status"])
                    for pod in crowd.system.pods()
                    if pod["metadata"]["name"] in crowd.managed and not _runs(pod)
                ][:3]
            ),
        )
        crowd.check()
