"""Steps of every case around its fault: pods are created, the fault ends, all is checked.

`Stage` remembers which slice each pod asked for. `settle` is promise LIVE-2: ledger = pods = nodes
soon after the last fault. `check` is the invariant checker; it reads the ledger (SAFE-1, SAFE-2,
SAFE-6), the API server, the kubelets' checkpoints with the agents' limits files, and what every
container reports of its card (SAFE-2, SAFE-3).
"""

import json
import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from hami_node_agent.adapters.kubelet.state import read_checkpoint
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.system import MIB, System, a_pod, slice_of, wait
from tests.faults.clocks import Clocks
from tests.faults.rows import Row

SIZES_MIB = (1024, 2048, 3072, 4096)
RECOVERED_S = 30.0
"""Promise LIVE-2: after the last fault ledger = pods = node within this."""
_UNTOLD = (
    "SELECT (SELECT count(*) FROM allocation_events WHERE published_at IS NULL)"
    " + (SELECT count(*) FROM outbox WHERE published_at IS NULL)"
)

MEASURED: dict[str, float] = {}
"""Seconds until recovery, by the row's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failpoints:
    """The system, and the file that makes its failpoints fail."""

    system: System
    file: Path

    def plan(self, *faults: str) -> None:
        """Make exactly these faults happen from now on."""
        whole = self.file.with_suffix(".written")
        whole.write_text("\n".join(faults))
        whole.replace(self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty(Failpoints):
    """The system of the pods' path."""

    real: bool
    """The API server and kube-scheduler are the real ones, and not ours to break."""
    clocks: Clocks
    row: Row | None = None
    """Row of the running case."""


@dataclass(slots=True)
class Stage:
    """The pods of one case."""

    faulty: Faulty
    prefix: str = "pod"
    sizes_mib: dict[str, int] = field(default_factory=dict)
    """Requested memory of each pod by name."""
    may_refuse: int = 0
    """Number of pods that a kubelet may refuse permanently (an agent died inside Allocate)."""
    began_s: float = field(default_factory=time.monotonic)
    replaced: int = 0
    """Pods that were ended by the scheduler or refused by their kubelet, and made again."""
    _untouched: dict[str, str] = field(default_factory=dict)
    _made: dict[str, Json] = field(default_factory=dict)

    @property
    def system(self) -> System:
        """The system that the pods are in."""
        return self.faulty.system

    def come(
        self,
        count: int = len(SIZES_MIB),
        *,
        node: str = "",
        timeout_s: float = 20.0,
        backwards: bool = False,
        alike: bool = False,
    ) -> None:
        """Create pods; retry a refusal or a lost connection, as a controller does.

        `backwards`: the younger a pod, the earlier its name. `alike`: all of one size, and on one
        card if there is room.
        """
        first = len(self.sizes_mib)
        numbers = range(first, first + count)
        for number in reversed(numbers) if backwards else numbers:
            name, size_mib = f"{self.prefix}-{number}", SIZES_MIB[number % len(SIZES_MIB)]
            if alike:
                size_mib = SIZES_MIB[0]
            pod = a_pod(name, slice_of(size_mib, 5), command=("vgpu-probe", "--no-launch"))
            if alike:
                pod["metadata"]["annotations"] = {"hami.io/gpu-scheduler-policy": "binpack"}
            if node:
                pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
                pod["spec"]["tolerations"] = [{"operator": "Exists"}]
            self.sizes_mib[name] = size_mib
            self._made[name] = pod
            wait(lambda pod=pod: self._try_create(pod), f"{name} to be taken", timeout_s=timeout_s)

    def _try_create(self, pod: Json) -> bool:
        try:
            answer = self.system.create(pod)
        except httpx.TransportError:
            return False
        assert answer.status_code in (201, 409, 429) or answer.status_code >= 500, answer.text
        # 409: the first attempt was taken, its answer was lost.
        return answer.status_code in (201, 409)

    def run_before(self, count: int, *, node: str = "") -> None:
        """Create pods that run before the fault and must not notice it."""
        self.come(count, node=node)
        self.settle()
        for pod in self.mine():
            self._untouched[pod["metadata"]["name"]] = pod["metadata"]["uid"]

    def mine(self) -> list[Json]:
        """This case's pods, as they are at the API server."""
        return [p for p in self.system.pods() if p["metadata"]["name"] in self.sizes_mib]

    def is_settled(self) -> bool:
        """Return whether every pod runs (or was refused permanently), the ledger agrees, and each
        of its changes has been announced."""
        return (
            all(is_running(pod) or is_refused(pod) for pod in self.mine())
            and len(self.mine()) == len(self.sizes_mib)
            and self.system.ledger_difference() is None
            and self.system.sql(_UNTOLD) == "0"
        )

    def replace_lost(self) -> bool:
        """Make another pod for each that was ended or refused; False: there was none."""
        here = {pod["metadata"]["name"]: pod for pod in self.mine()}
        lost = [n for n in self.sizes_mib if n not in here or is_refused(here[n])]
        for name in lost:
            self.system.delete(name)
            wait(lambda name=name: self._try_create(self._made[name]), f"{name} to be taken again")
        self.replaced += len(lost)
        return bool(lost)

    def settle(self, timeout_s: float = RECOVERED_S, *, replacing: bool = False) -> float:
        """Wait for that; return how many seconds it took.

        `replacing`: pods may end during the wait, and are created again.
        """
        began_s = time.monotonic()
        wait(
            lambda: not (replacing and self.replace_lost()) and quietly(self.is_settled)(),
            "every pod to run, and the ledger to have them so",
            timeout_s=timeout_s,
            why=lambda: f"{self.system.ledger_difference()} {phases(self.mine())}",
        )
        return time.monotonic() - began_s

    def check(self, *, restarted: Container[str] = (), blind: Container[str] = ()) -> None:
        """Run the invariant checker; every container must have printed its devices.

        `restarted`: pods whose container the case ended. `blind`: pods whose card was removed.
        """
        self.system.check_invariants()
        refused = [pod["metadata"]["name"] for pod in self.mine() if is_refused(pod)]
        assert len(refused) <= self.may_refuse, phases(self.mine())
        for pod in self.mine():
            name = pod["metadata"]["name"]
            if name in refused or name in blind:
                continue
            lines = self.system.wait_for_log(pod, "cuda", "running")
            seen = [line["total_bytes"] // MIB for line in lines if line["event"] == "device"]
            wanted = self.sizes_mib[name]
            assert set(seen) == {wanted}, f"{name} sees {seen} MiB, asked for {wanted}"
        for name, uid in self._untouched.items():
            pod = self.system.pod(name) or {}
            assert pod.get("metadata", {}).get("uid") == uid, f"{name} is another pod now"
            restarts = sum(status["restartCount"] for status in pod["status"]["containerStatuses"])
            assert restarts == int(name in restarted), f"{name} was restarted {restarts} times"
        check_node_files(self.system)

    def recover(
        self, *, since_s: float | None = None, restarted: Container[str] = (), more: str = ""
    ) -> None:
        """Wait for recovery, check everything, and report how long that took.

        `since_s`: when the fault ended, by the monotonic clock; None: now.
        """
        over_s = time.monotonic() if since_s is None else since_s
        self.settle()
        self.check(restarted=restarted)
        self.report(since(over_s), more=more)

    def report(self, recovered_s: float, *, more: str = "") -> None:
        """Record the case's row and line; `recovered_s` counts from the fault's end."""
        row = self.faulty.row
        assert row is not None
        refused = sum(is_refused(pod) for pod in self.mine())
        tail = f"; {refused} refused by the kubelet" if refused else ""
        line = (
            f"{row.point:4} {row.fault}, {row.kind} [{row.name}]: ran {since(self.began_s):.1f} s,"
            f" recovered {recovered_s:.1f} s after the fault{tail}{'; ' if more else ''}{more}"
        )
        MEASURED[row.name] = recovered_s
        measured.note(line)


def check_node_files(system: System) -> None:
    """Check that each container mounts the limits the ledger granted it (SAFE-2, SAFE-3)."""
    rows = system.sql(
        "SELECT a.pod_uid || '/' || x.container_name, a.node, x.device_uuid, x.memory_mib,"
        " x.core_percent FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id"
        " WHERE a.state = 'allocated' AND x.role = 'app' ORDER BY 1, 3"
    ).splitlines()
    granted: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        container, node, uuid, memory_mib, core_percent = row.split("|")
        line = f"device {uuid} memory_bytes {int(memory_mib) * MIB} core_percent {core_percent}"
        granted.setdefault((node, container), set()).add(line)
    found = {}
    for node, container, folder in _answers(system):
        text = (folder / "limits").read_text() if (folder / "limits").exists() else ""
        lines = {line for line in text.splitlines() if line.startswith("device ")}
        found[node, container] = lines
    for key, lines in granted.items():
        assert found.get(key) == lines, f"{key}: limits {found.get(key)}, granted {lines}"


def _answers(system: System) -> Iterator[tuple[str, str, Path]]:
    """(node, pod uid/container, its limits directory) as the kubelets keep our answers."""
    for home in system.folder.glob("nodes/*"):
        file = home / "kubelet" / "device-plugins" / "kubelet_internal_checkpoint"
        for holding in read_checkpoint(file.read_bytes(), "nvidia.com/gpu"):
            if holding.answer is not None:
                folder = home / "agent" / "limits" / holding.answer.nonce
                yield home.name, f"{holding.pod_uid}/{holding.container}", folder


def is_running(pod: Json) -> bool:
    """Return whether the pod and all its containers run."""
    states = [status.get("state", {}) for status in pod["status"].get("containerStatuses") or []]
    return pod["status"].get("phase") == "Running" and all("running" in state for state in states)


def is_refused(pod: Json) -> bool:
    """Return whether the kubelet refused it permanently."""
    status = pod["status"]
    return (status.get("phase"), status.get("reason")) == ("Failed", "UnexpectedAdmissionError")


def phases(pods: Iterable[Json]) -> str:
    """For the message of a failed wait."""
    return json.dumps(
        {p["metadata"]["name"]: p["status"] for p in pods if not is_running(p)}, default=str
    )


def quietly(check: Callable[[], bool]) -> Callable[[], bool]:
    """The check, False while the API server or the ledger does not answer."""

    def is_true() -> bool:
        try:
            return check()
        except (httpx.TransportError, AssertionError):
            return False

    return is_true


def since(moment_s: float) -> float:
    """Seconds since then (monotonic clock)."""
    return time.monotonic() - moment_s
