"""A running system whose one node is real: kubelet, containers, and our node-agent beside it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
from hamicommon.k8s.types import Json
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port

from tests.e2e.system import MIB, System, a_pod, wait
from tests.processes import start
from tests.real_node.node import WORKLOAD_IMAGE, RealNode
from tests.waiting import PATIENCE_S

CARDS = 2
SLOTS_PER_CARD = 10
# A kubelet of 1.20 looks after pods that ended every ten seconds, and needs several rounds.
GONE_S = 120.0


class Agent:
    """hami-node-agent as a process that may be killed and started again."""

    def __init__(self, folder: Path, env: Mapping[str, str], *, native: Path) -> None:
        self.folder = folder
        port = free_port()
        self.url = f"http://{LOOPBACK}:{port}"
        self._env = {
            **env,
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(native / "fakegpu" / "build"),
            "FAKEGPU_CONFIG": str(folder / "fakegpu" / "config.json"),
            "HAMI_NODE_AGENT_HOOK_PATH": str(folder / "hook"),
            "HAMI_NODE_AGENT_STATE_DIR": str(folder / "agent"),
            "HAMI_NODE_AGENT_METRICS_BIND": f"{LOOPBACK}:{port}",
        }
        self._settings: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        """Return the log of all runs."""
        return (self.folder / "node-agent.log").read_text()

    def start(self, **settings: str) -> None:
        """Start it, with more settings, and wait until the kubelet has its devices."""
        self._settings = settings
        with (self.folder / "node-agent.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).parent / "hami-node-agent")],
                env=self._env | settings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until its readiness probe succeeds."""
        wait(self._ready, "the node-agent to be ready", why=lambda: self.log[-2000:])

    def metrics(self) -> str:
        """Return the agent's metrics page."""
        return httpx.get(f"{self.url}/metrics", timeout=10).text

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200
        except httpx.HTTPError:
            return False

    def stop(self) -> None:
        """End the agent as an upgrade does: by SIGTERM, which lets it finish its work."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(timeout=60) == 0
        self._process = None

    def restart(self) -> None:
        """Stop the agent and start it with the settings that it had."""
        self.stop()
        self.start(**self._settings)

    def wait_until_killed(self) -> None:
        """Wait until a failpoint has ended it."""
        assert self._process is not None
        assert self._process.wait(timeout=PATIENCE_S) == -signal.SIGKILL
        self._process = None

    def kill(self) -> None:
        """Kill the agent as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class KubeScheduler:
    """The stock one, which may be killed and started again."""

    def __init__(self, plan: ServerPlan) -> None:
        self._plan = plan
        self._process = start(plan, die_with_parent=True)

    def start(self) -> None:
        """Start it again."""
        self._process = start(self._plan, die_with_parent=True)

    def stop(self) -> None:
        """At the end."""
        self._process.stop()

    def kill(self) -> None:
        """Kill the process as a crash would."""
        self._process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSystem(System):
    """The system of `tests/e2e`, with a node that can be looked into."""

    node: RealNode
    agent: Agent
    kube_scheduler: KubeScheduler
    failpoints: Path
    """File that names the faults in our services (`hamicommon.fault_injection`)."""

    def plan(self, *faults: str) -> None:
        """Make only these faults happen from now on."""
        whole = self.failpoints.with_suffix(".written")
        whole.write_text("\n".join(faults))
        whole.replace(self.failpoints)

    def pod_like(
        self,
        name: str,
        limits: Mapping[str, object] | None = None,
        *,
        command: Sequence[str] = ("vgpu-probe",),
        containers: Mapping[str, Mapping[str, object]] | None = None,
        init: Mapping[str, object] | None = None,
    ) -> Json:
        """A pod of probes in the workload image, on the node's stand-in cards."""
        pod = a_pod(name, limits, command=command, containers=containers, init=init)
        cards = str(self.agent.folder / "fakegpu")
        spec = pod["spec"]
        for container in [*spec["containers"], *spec.get("initContainers", [])]:
            container["image"] = WORKLOAD_IMAGE
            container["command"].insert(0, "fakegpu-run")
            container["env"] = [{"name": "FAKEGPU_CONFIG", "value": f"{cards}/config.json"}]
            container["volumeMounts"] = [{"name": "cards", "mountPath": cards}]
        spec["volumes"] = [{"name": "cards", "hostPath": {"path": cards}}]
        return pod

    def log(self, pod: Json, container: str) -> list[Json]:
        """Return the JSON lines that a container printed in the runs whose logs are kept."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        lines = self.node.pod_log("default", name, container, uid=uid).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def seen_mib(self, pod: Json, container: str = "cuda") -> list[int]:
        """Wait until the probe runs; return its memory of each card after all checks.

        The total that CUDA and NVML show, the amount taken and the amount refused must agree.
        """
        lines = self.wait_for_log(pod, container, "launched")
        found = []
        for device in (line for line in lines if line["event"] == "device"):
            [taken] = [
                line["bytes"]
                for line in lines
                if line["event"] == "allocated" and line["index"] == device["index"]
            ]
            refused = [line["error"] for line in lines if line["event"] == "refused"]
            assert device["total_bytes"] == device["nvml_total_bytes"] == taken, lines
            assert set(refused) == {"CUDA_ERROR_OUT_OF_MEMORY"}, lines
            found.append(taken >> 20)
        return found

    def mounts(self, pod: Json) -> dict[str, str]:
        """Path in the pod's container -> where it lies in the file system that it comes from."""
        text = Path(f"/proc/{self.container_pid(pod)}/mountinfo").read_text()
        return {line.split()[4]: line.split()[3] for line in text.splitlines()}

    def container_pid(self, pod: Json, container: str = "cuda") -> int:
        """The host's number of the container's first process."""
        statuses = (self.pod(pod["metadata"]["name"]) or pod)["status"]["containerStatuses"]
        [identity] = [s["containerID"] for s in statuses if s["name"] == container]
        return self.node.container_pid(identity)

    def wrong_slice(self, pod: Json, memory_mib: int, *, core_percent: int) -> list[str]:
        """List differences between the container's process and the ledger's row.

        Its card, its limits file and the memory that it can take are compared.
        """
        seen, pid = self.seen_mib(pod), self.container_pid(pod)
        limits = Path(f"/proc/{pid}/root/etc/hami/limits").read_text()
        card, granted = self.sql(
            "SELECT x.device_uuid, x.memory_mib FROM allocation_devices x JOIN allocations a"
            f" ON a.id = x.allocation_id WHERE a.pod_uid = '{pod['metadata']['uid']}'"
            " AND a.ended_at IS NULL"
        ).split("|")
        line = f"device {card} memory_bytes {memory_mib * MIB} core_percent {core_percent}"
        right = (
            seen == [memory_mib]
            and granted == str(memory_mib)
            and line in limits
            and _card_of(pid) == card
        )
        name = pod["metadata"]["name"]
        return [] if right else [f"{name}: sees {seen}, has {limits!r}, granted {card} {granted}"]

    def delete(self, *names: str, timeout_s: float = GONE_S) -> None:
        """Delete pods and wait until the kubelet has cleaned up behind them."""
        System.delete(self, *names, timeout_s=timeout_s)

    def limits(self, pod: Json, container: str = "cuda") -> dict[str, tuple[int, int]]:
        """Return the limits file of the container: MiB and percent of cores by card."""
        pid = self.container_pid(pod, container)
        lines = Path(f"/proc/{pid}/root/etc/hami/limits").read_text().splitlines()
        found = [line.split() for line in lines if line.startswith("device ")]
        return {line[1]: (int(line[3]) // MIB, int(line[5])) for line in found}

    def live_allocations(self) -> int:
        """Return the number of live allocations in the ledger."""
        return int(self.sql("SELECT count(*) FROM allocations WHERE ended_at IS NULL"))

    def offered_slots(self) -> int:
        """Device slots that the kubelet reports to the API server."""
        status = self.get(f"/api/v1/nodes/{self.node.name}")["status"]
        return int(status["allocatable"].get("nvidia.com/gpu", "0"))

    def wait_until_offered(self) -> None:
        """Wait until all slots of all cards are on the Node object."""
        wait(lambda: self.offered_slots() == CARDS * SLOTS_PER_CARD, "the slots to be on the Node")


def _card_of(pid: int) -> str:
    """The card that the container was given."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    [cards] = [e for e in entries if e.startswith(b"NVIDIA_VISIBLE_DEVICES=")]
    return cards.decode().partition("=")[2]
