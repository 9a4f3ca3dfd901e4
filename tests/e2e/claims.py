"""A system on a real control plane whose ledger allocates ResourceClaims.

Its nodes are simulated, so their ResourceSlices are written here; what kubelet and agent do with an
allocated claim is in `tests/e2e_node/dra/test_claim_lead.py`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from hami_node_agent.dra.slices import offered_devices, wanted_slice
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.dra.devices import DRIVER
from hamicommon.dra.requests import DEVICE_CLASS, PERCENT
from hamicommon.k8s.types import Json
from hamilocal.supervisor.ports import free_port

from tests.e2e.conftest import running_system
from tests.e2e.system import System, a_pod, wait

COMPONENT = Path(__file__).resolve().parents[2] / "k8s" / "components" / "dra"
API = "/apis/resource.k8s.io/v1"
SLEEPS = ("sleep", "10000")
"""A simulated node prepares no claims, so a program of its pods finds no card."""
CLAIMS = f"{API}/namespaces/default/resourceclaims"


def device_class() -> Json:
    """The one that the component `dra` makes."""
    body: Json = yaml.safe_load((COMPONENT / "device-class.yaml").read_text())
    return body


def claim_body(name: str, *, count: int = 1, percent: int | None = None, **capacity: str) -> Json:
    """A claim of one request; `capacity` as in the request, `percent` of the memory."""
    exactly: Json = {"deviceClassName": DEVICE_CLASS, "count": count}
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    devices: Json = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if percent is not None:
        devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": {PERCENT: percent}}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": devices},
    }


def claiming(pod: Json, *claims: str) -> Json:
    """The pod with claims in place of limits."""
    pod["spec"]["resourceClaims"] = [{"name": c, "resourceClaimName": c} for c in claims]
    for container in pod["spec"]["containers"]:
        container["resources"] = {"claims": [{"name": c} for c in claims]}
    return pod


@dataclass(frozen=True, kw_only=True)
class Leading:
    """The system, and what tests do with claims."""

    system: System
    faults: Path

    def claim(self, name: str, **wanted: object) -> None:
        body = claim_body(name, **wanted)  # type: ignore[arg-type]  # handed on
        made = self.system.api.post(CLAIMS, json=body)
        assert made.status_code == 201, made.text

    def pod(
        self, name: str, annotations: Mapping[str, str] | None = None, **wanted: object
    ) -> None:
        """A pod and its claim of the same name."""
        self.claim(name, **wanted)
        self.create(claiming(a_pod(name, annotations=annotations, command=SLEEPS), name))

    def create(self, pod: Json) -> None:
        answer = self.system.create(pod)
        assert answer.status_code == 201, answer.text

    def granted(self, name: str) -> list[str]:
        """`card` of each slice of the pod's live grant, in order; waits for it."""
        query = (
            "SELECT x.device_uuid FROM allocation_devices x JOIN allocations a"
            f" ON a.id = x.allocation_id WHERE a.pod_name = '{name}' AND a.ended_at IS NULL"
            " ORDER BY x.container_index, x.position"
        )
        return wait(
            lambda: self.system.sql(query).splitlines() or None,
            f"a grant of {name}",
            why=lambda: str(self.system.events(name)),
        )

    def results(self, name: str) -> list[Json]:
        """What is allocated to the claim."""
        status = self.system.get(f"{CLAIMS}/{name}").get("status") or {}
        found: list[Json] = (status.get("allocation") or {}).get("devices", {}).get("results", [])
        return found

    def why(self, name: str) -> str:
        return "\n".join(text for _, text in self.system.events(name))

    def clear(self) -> None:
        """Every pod and claim goes, as users and controllers have them go."""
        self.system.delete_all()
        for claim in self.system.get(CLAIMS)["items"]:
            self.system.api.delete(f"{CLAIMS}/{claim['metadata']['name']}")
        wait(
            lambda: self.system.get(CLAIMS)["items"] == [],
            "the claims to go",
            why=lambda: str(self.system.get(CLAIMS)["items"]),
        )

    def differs(self) -> str | None:
        """None when claims = ledger."""
        held = self.system.sql(
            "SELECT a.pod_uid || ' ' || lower(x.device_uuid) || ' ' || x.memory_mib"
            " FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id"
            " WHERE a.ended_at IS NULL AND a.origin = 'claim' ORDER BY 1"
        ).splitlines()
        found = []
        for claim in self.system.get(CLAIMS)["items"]:
            status = claim.get("status") or {}
            for result in (status.get("allocation") or {}).get("devices", {}).get("results", ()):
                memory = _mib(result["consumedCapacity"]["memory"])
                [holder] = status["reservedFor"]
                found.append(f"{holder['uid']} {result['device']} {memory}")
        return None if sorted(found) == held else f"claims {sorted(found)}, ledger {held}"


def _mib(quantity: str) -> int:
    number, unit = quantity[:-2], quantity[-2:]
    return int(number) * {"Mi": 1, "Gi": 1024}[unit]


@contextmanager
def leading_system(folder: Path, *flags: str) -> Iterator[Leading]:
    """With kube-controller-manager's part of claims beside it."""
    faults = folder / "faults"
    faults.touch()
    environment = {
        "HAMI_SCHEDULER_DRA_MODE": "lead",
        "HAMI_SCHEDULER_CLAIM_TEMPLATES": "on",
        "HAMI_WEBHOOK_DRA": "on",
        "HAMI_WEBHOOK_DRA_MODE": "lead",
        "HAMI_SCHEDULER_RECONCILE_S": "5",
        "HAMI_FAILPOINTS_FILE": str(faults),
    }
    with ExitStack() as stack:
        system = stack.enter_context(running_system("real", *flags, environment=environment))
        stack.enter_context(_controllers(system, folder))
        made = system.api.post(f"{API}/deviceclasses", json=device_class())
        assert made.status_code == 201, made.text
        wait(lambda: system.sql("SELECT count(*) FROM devices") != "0", "the cards")
        publish(system)
        yield Leading(system=system, faults=faults)


def publish(system: System) -> None:
    """A ResourceSlice of each node, as an agent that leads writes it."""
    cards: dict[str, list[GpuDevice]] = {}
    query = "SELECT node, uuid, index, slots, memory_mib, numa FROM devices ORDER BY node, index"
    for line in system.sql(query).splitlines():
        node, uuid, index, slots, memory, numa = line.split("|")
        card = GpuDevice(
            uuid=GpuUuid(uuid),
            index=int(index),
            vendor="NVIDIA",
            type="NVIDIA A100",
            slots=int(slots),
            memory_mib=int(memory),
            core_percent=100,
            numa=int(numa),
        )
        cards.setdefault(node, []).append(card)
    for node, found in cards.items():
        uid = system.get(f"/api/v1/nodes/{node}")["metadata"]["uid"]
        body = wanted_slice(node, uid, offered_devices(found, (), led=True), None)
        made = system.api.post(f"{API}/resourceslices", json=body)
        assert made.status_code == 201, made.text


@contextmanager
def _controllers(system: System, folder: Path) -> Iterator[None]:
    """kube-controller-manager: claims from templates, and their release."""
    binary = Path(os.environ["KUBEBUILDER_ASSETS"]) / "kube-controller-manager"
    argv = [
        str(binary),
        f"--kubeconfig={system.described['kubeconfig']}",
        "--controllers=resourceclaim-controller",
        "--leader-elect=false",
        f"--secure-port={free_port()}",
        f"--cert-dir={folder}",
    ]
    with (folder / "kube-controller-manager.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)
