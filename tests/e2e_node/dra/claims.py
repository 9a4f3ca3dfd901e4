"""ResourceClaims of a real node's cards: what the cases make, read and take back."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hamicommon.dra.devices import DRIVER
from hamicommon.k8s.types import Json

from tests.e2e.system import wait
from tests.e2e_node.node_system import CARDS, NodeSystem

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
CLASS = DRIVER
CARD_MIB = 81920
SINCE = (1, 36)
MERGE = {"content-type": "application/merge-patch+json"}
ROOT = Path(__file__).resolve().parents[3]
NATIVE = ROOT / "native"
COMPONENT = ROOT / "k8s" / "components" / "dra"


def device_class() -> Json:
    """The one that the component `dra` makes."""
    body: Json = yaml.safe_load((COMPONENT / "device-class.yaml").read_text())
    return body


def start(system: NodeSystem, **settings: str) -> None:
    """The agent, with its cards as DRA devices."""
    system.agent.start(
        HAMI_NODE_AGENT_DRA="auto",
        HAMI_NODE_AGENT_XID_QUIET_S="1",
        HAMI_NODE_AGENT_CRI_SOCKET=str(system.node.socket),
        HAMI_NODE_AGENT_CDI_DIR=str(system.folder.parent / "cdi"),
        HAMI_FAILPOINTS_FILE=str(system.failpoints),
        **settings,
    )
    system.wait_until_offered()


def wait_until_published(system: NodeSystem) -> None:
    """Until the cards are in a ResourceSlice."""
    wait(lambda: len(devices(system)) == CARDS, "the cards in a ResourceSlice")


def descriptions(system: NodeSystem) -> list[Path]:
    """CDI files of slices."""
    return list((system.folder.parent / "cdi").glob("hami.io-slice_*.json"))


def directories(system: NodeSystem) -> list[Path]:
    """Return the directories of the containers' limits and regions on the host."""
    folder = system.agent.folder
    return [
        path
        for parent in (folder / "agent" / "limits", folder / "hook" / "vgpu" / "containers")
        for path in parent.glob("*")
        if not path.name.startswith(".")
    ]


def slices(system: NodeSystem) -> list[Json]:
    """The specs of our ResourceSlices."""
    found = system.get(f"{API}/resourceslices")["items"]
    return [one["spec"] for one in found if one["spec"]["driver"] == DRIVER]


def devices(system: NodeSystem) -> list[Json]:
    """Return the devices of our slices."""
    return [device for spec in slices(system) for device in spec.get("devices", [])]


def claim(system: NodeSystem, name: str, **requests: Mapping[str, Any]) -> str:
    """A claim with these requests, each with its capacity."""
    made = system.api.post(
        CLAIMS,
        json={
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {
                "devices": {
                    "requests": [
                        {
                            "name": each,
                            "exactly": {
                                "deviceClassName": CLASS,
                                "capacity": {"requests": dict(wanted)},
                            },
                        }
                        for each, wanted in requests.items()
                    ]
                }
            },
        },
    )
    assert made.status_code == 201, made.text
    return str(made.json()["metadata"]["uid"])


def claim_of_card(system: NodeSystem, name: str, card: str, amounts: Mapping[str, str]) -> None:
    """A claim of a part of just this card."""
    expression = f'device.attributes["{DRIVER}"].uuid == "{card}"'
    exactly = {
        "deviceClassName": CLASS,
        "capacity": {"requests": dict(amounts)},
        "selectors": [{"cel": {"expression": expression}}],
    }
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    made = system.api.post(CLAIMS, json=body)
    assert made.status_code == 201, made.text


def forget(system: NodeSystem, name: str) -> None:
    """Release the claim as the claim controller does after its last pod."""
    system.api.delete(f"{CLAIMS}/{name}")
    for path, body in (
        (f"{CLAIMS}/{name}/status", {"status": {"reservedFor": None, "allocation": None}}),
        (f"{CLAIMS}/{name}", {"metadata": {"finalizers": None}}),
    ):
        system.api.patch(path, json=body, headers=MERGE)
    wait(lambda: system.api.get(f"{CLAIMS}/{name}").status_code == 404, f"claim {name} to go")


def claiming_pod(system: NodeSystem, name: str, *, of: str | None = None) -> Json:
    """A pod of one probe whose card comes by a claim."""
    pod = system.pod_like(name)
    pod["spec"]["schedulerName"] = "default-scheduler"
    pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": of or name}]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "card"}]}
    return pod


def reasons(system: NodeSystem, name: str) -> str:
    """The texts of its events."""
    return "\n".join(text for _, text in system.events(name))


def control(system: NodeSystem, *argv: str) -> None:
    """Run a command of the stand-in driver."""
    config = str(system.agent.folder / "fakegpu" / "config.json")
    subprocess.run(
        [NATIVE / "fakegpu" / "build" / "fakegpu-ctl", *argv],
        env={"FAKEGPU_CONFIG": config},
        check=True,
        timeout=60,
    )
