"""From HAMi to us with pods running: its device plugin is replaced, its pods are adopted."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from hamicommon.k8s.types import Json
from hamilocal.system.options import LocalNode, fakegpu_config

from tests import measured
from tests.e2e.conftest import running_system
from tests.e2e.system import MIB, System, a_pod, hamictl, slice_of, wait
from tests.e2e_node.node_system import Agent
from tests.hami.plugin import HamiPlugin, hami_annotations
from tests.waiting import PATIENCE_S

NODE = "old-node"
NATIVE = Path(__file__).resolve().parents[3] / "native"
CARD_MIB = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class OldNode:
    """A node that HAMi served until now."""

    system: System
    folder: Path
    cards: tuple[str, ...]
    agent: Agent

    @property
    def sockets(self) -> Path:
        return self.folder / "kubelet" / "device-plugins"

    @property
    def hook(self) -> Path:
        return self.folder / "hook" / "vgpu"

    def pending(self) -> list[Json]:
        return [
            pod
            for pod in self.system.pods()
            if pod["spec"].get("nodeName") == NODE and pod["status"].get("phase") == "Pending"
        ]

    def hamis_pod(self, name: str, written: str, pod: Json) -> Json:
        """Create a pod as HAMi's webhook and scheduler left it."""
        pod["metadata"]["annotations"] |= hami_annotations(NODE, written)
        pod["spec"] |= {"nodeName": NODE, "schedulerName": "hami-scheduler"}
        with self.system.past_admission():
            answer = self.system.create(pod)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def adopt(self, *flags: str) -> tuple[int, Json]:
        """`hamictl adopt` as an operator runs it."""
        done = subprocess.run(
            [str(Path(sys.executable).parent / "hamictl"), "adopt", "-o", "json", *flags],
            env={"HAMI_FOLDER": str(self.system.folder), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def offered_slots(self) -> int:
        status = self.system.get(f"/api/v1/nodes/{NODE}")["status"]
        return int((status.get("allocatable") or {}).get("nvidia.com/gpu", "0"))


@pytest.fixture(scope="module")
def node(cluster_kind: str) -> Iterator[OldNode]:
    """A system without nodes, and beside it a kubelet whose plugin is HAMi's."""
    with ExitStack() as stack:
        system = stack.enter_context(
            running_system(
                cluster_kind, "--nodes", "0", "--external-node", NODE, "--gpu-policy", "binpack"
            )
        )
        folder = system.folder / "o"
        (folder / "fakegpu").mkdir(parents=True)
        cards = LocalNode(name=NODE, gpus=2, model="NVIDIA A100", memory_mib=CARD_MIB)
        described = fakegpu_config(cards, system=str(folder), state=str(folder / "fakegpu/state"))
        config = folder / "fakegpu" / "config.json"
        config.write_text(json.dumps(described))
        log = stack.enter_context((folder / "kubelet.log").open("wb"))
        kubelet = subprocess.Popen(
            [
                *(sys.executable, "-m", "kubelocal.kubelet", "--node", NODE),
                *("--kubeconfig", str(system.described["kubeconfig"])),
                *("--root", str(folder / "kubelet"), "--fakegpu-config", str(config)),
                *("--native-dir", str(NATIVE), "--stop-containers-on-exit"),
                *("--backoff-initial-s", "1", "--backoff-max-s", "2", "--sync-retry-s", "1"),
            ],
            stdout=log,
            stderr=log,
        )
        stack.callback(kubelet.wait, timeout=PATIENCE_S)
        stack.callback(kubelet.terminate)
        [external] = system.described["external_nodes"]
        env = external["node_agent_env"] | {
            "HAMI_NODE_AGENT_KUBELET_DIR": str(folder / "kubelet"),
        }
        agent = Agent(folder, env, native=NATIVE)
        stack.callback(agent.kill)
        found = OldNode(
            system=system,
            folder=folder,
            cards=tuple(device["uuid"] for device in described["devices"]),
            agent=agent,
        )
        wait((found.sockets / "kubelet.sock").exists, "the kubelet's socket")
        yield found


def test_hamis_pods_are_taken_over_while_they_run(node: OldNode) -> None:
    system, [first, second] = node.system, node.cards
    node.hook.mkdir(parents=True)
    library = (NATIVE / "libvgpu/build/libvgpu.so").read_bytes()
    (node.hook / "libvgpu.so.v2.10.0").write_bytes(library)
    (node.hook / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n")
    plugin = HamiPlugin(cards=node.cards, slots=10, base=node.hook, pending=node.pending)
    with plugin.serving(node.sockets):
        wait(lambda: node.offered_slots() == 20, "HAMi's slots to be on the Node")
        pods = {}
        for name, card, mib in (("a", first, 4096), ("b", first, 6000), ("c", second, 10000)):
            made = a_pod(name, slice_of(mib, 30))
            node.hamis_pod(name, f"{card},NVIDIA,{mib},30:;", made)
            pods[name] = system.wait_for_phase(name, "Running")
        looping = a_pod("looping", slice_of(2000, 10), command=("vgpu-probe", "--once"))
        node.hamis_pod("looping", f"{second},NVIDIA,2000,10:;", looping)
        wait(lambda: restarts(system, "looping") >= 1, "a container that ends to start again")
        forged = a_pod("forged", command=("sleep", "1000"))
        forged["spec"]["containers"][0]["command"] = ["vgpu-probe"]
        node.hamis_pod("forged", f"{second},NVIDIA,1000,10:;", forged)

    node.agent.start()
    wait(lambda: node.offered_slots() == 20, "our slots to be on the Node")
    wait(lambda: system.sql("SELECT count(*) FROM devices WHERE present") == "2", "the cards")
    held_back = restarts(system, "looping")

    code, dry = node.adopt()
    assert code == 1
    assert outcomes(dry) == {
        **dict.fromkeys(("a", "b", "c", "looping"), "would adopt"),
        "forged": "no-evidence",
    }
    assert system.sql("SELECT count(*) FROM allocations") == "0"

    _, done = node.adopt("--apply")
    assert [row["outcome"] for row in done["pods"]].count("adopted") == 4
    assert read_used(system) == {first: 10096, second: 12000}
    measured.note(f"adopted: {len(done['pods'])} pods judged, 4 adopted, 1 forged one refused")
    system.check_invariants()

    # Nothing was restarted, and a container that exits starts again.
    for name in ("a", "b", "c"):
        assert restarts(system, name) == 0
        lines = system_log(node, pods[name])
        assert [x["bytes"] for x in lines if x["event"] == "allocated"] == [
            {"a": 4096, "b": 6000, "c": 10000}[name] * MIB
        ]
    wait(lambda: restarts(system, "looping") > held_back, "the adopted container to start again")

    # The filter counts what HAMi gave: 6288 MiB are left of the first card, 4384 of the second.
    assert system.create(a_pod("large", slice_of(6289))).status_code == 201
    assert "CardInsufficientMemory" in system.wait_for_reason("large")
    [small] = system.run(a_pod("small", slice_of(6288)))
    assert small["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"].startswith(first)
    assert read_used(system) == {first: 16384, second: 12000}

    code, again = node.adopt("--apply")
    assert sorted(row["outcome"] for row in again["pods"]) == ["held"] * 5 + ["refused"]

    # An adopted pod ends: its slices are free, and the pod that waited gets them.
    system.delete("a", "b")
    system.wait_for_phase("large", "Running")
    wait(lambda: read_used(system)[first] in (6288, 6288 + 6289), "the slices to be free")
    assert not (node.hook / "containers" / f"{pods['a']['metadata']['uid']}_cuda").exists()
    history = hamictl(system.folder, "history", "c")
    assert "placed by HAMi, adopted" in history
    system.check_invariants()
    system.delete_all()


def restarts(system: System, name: str) -> int:
    pod = system.pod(name)
    assert pod is not None
    statuses = pod["status"].get("containerStatuses") or []
    return sum(int(status.get("restartCount", 0)) for status in statuses)


def outcomes(answer: Json) -> dict[str, str]:
    return {row["name"]: row["why"] or row["outcome"] for row in answer["pods"]}


def read_used(system: System) -> dict[str, int]:
    rows = system.sql("SELECT uuid || ' ' || used_memory_mib FROM devices").splitlines()
    return {row.split()[0]: int(row.split()[1]) for row in rows}


def system_log(node: OldNode, pod: Json) -> list[Json]:
    path = node.folder / "kubelet" / "pods" / pod["metadata"]["uid"] / "cuda.log"
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
