"""Options of `hamictl up`, and the nodes that follow from them.

They are written to a file for the supervisor, which is a separate process. A node has simulated
cards, with the stand-in driver's configuration of them, or the cards of this machine.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hamicommon import device_config as deviceconfig
from hamicommon.vendors.registry import Vendors
from pydantic import BaseModel, ConfigDict, Field

# (SM count, compute capability) of simulated models; others count as the first.
_MODELS: Mapping[str, tuple[int, tuple[int, int]]] = {
    "A100": (108, (8, 0)),
    "H100": (132, (9, 0)),
    "H200": (132, (9, 0)),
    "V100": (80, (7, 0)),
    "T4": (40, (7, 5)),
    "A10": (72, (8, 6)),
    "L40": (142, (8, 9)),
    "B200": (148, (10, 0)),
}
_MAX_THREADS_PER_SM = 2048
# Namespace of our simulated uuids: the same folder, node and index always make the same card.
_NAMESPACE = uuid.UUID("6f0c7c1e-2f3b-4a51-9f0e-9d1f0a5a7d10")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """Node of a local system."""

    name: str
    gpus: int
    """Number of simulated cards; of this machine's own cards at least 1, as it is unknown yet."""
    model: str
    memory_mib: int
    own_cards: bool = False
    """Whether the node has this machine's cards; then `model` and `memory_mib` are not used."""


def simulated_nodes(*, count: int, gpus: int, model: str, memory_mib: int) -> tuple[LocalNode, ...]:
    """Return `count` equal nodes, named node-0, node-1, ..."""
    return tuple(
        LocalNode(name=f"node-{number}", gpus=gpus, model=model, memory_mib=memory_mib)
        for number in range(count)
    )


def own_node() -> LocalNode:
    """Return this machine as a node, with its own cards."""
    return LocalNode(name="node-0", gpus=1, model="", memory_mib=0, own_cards=True)


def fakegpu_config(node: LocalNode, *, system: str, state: str) -> dict[str, Any]:
    """Return the simulated driver's configuration for a node; `system` makes uuids unique."""
    sm_count, (major, minor) = next(
        (shape for key, shape in _MODELS.items() if key in node.model), _MODELS["A100"]
    )
    return {
        "state": state,
        "driver_version": "570.124.06",
        "cuda_version": 12080,
        # Contexts take no memory here, so that a pod can use its slice to the last byte.
        "context_mib": 0,
        "devices": [
            {
                "uuid": f"GPU-{uuid.uuid5(_NAMESPACE, f'{system}/{node.name}/{index}')}",
                "name": node.model,
                "memory_mib": node.memory_mib,
                "sm_count": sm_count,
                "max_threads_per_sm": _MAX_THREADS_PER_SM,
                "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
                "numa": 0 if index < (node.gpus + 1) // 2 else 1,
                "major": major,
                "minor": minor,
            }
            for index in range(node.gpus)
        ],
    }


class UpOptions(BaseModel):
    """Options of `hamictl up` that determine the system."""

    model_config = ConfigDict(frozen=True)

    nodes: int = Field(default=3, ge=0, le=200, description="simulated nodes")
    gpus: int = Field(default=4, ge=0, le=64, description="cards per node")
    model: str = "NVIDIA A100-SXM4-80GB"
    memory_mib: int = Field(default=81920, ge=1, description="memory per card")
    own_cards: bool = Field(
        default=False, description="one node with this machine's cards in place of simulated ones"
    )
    driver_folder: Path | None = Field(
        default=None, description="libraries of their driver, where the loader does not find them"
    )
    external_nodes: tuple[str, ...] = Field(
        default=(), description="nodes whose kubelet and node-agent run elsewhere"
    )
    kubeconfig: Path | None = Field(default=None, description="existing API server, else emulated")
    node_policy: str = Field(default="binpack", pattern="^(binpack|spread|fragmentation)$")
    gpu_policy: str = ""
    score_pods_without_cards: bool = Field(
        default=False, description="kube-scheduler asks us for scores of nodes for those, too"
    )
    device_config: Path | None = Field(
        default=None, description="HAMi's device-config.yaml, for every service"
    )
    binding: Literal["mixed", "lock", "late"] = Field(
        default="mixed",
        description="how containers get their slices: late: by CDI at their start; lock: at "
        "Allocate, one pod at a time; mixed: late, but for each third node",
    )
    kubelet_flags: tuple[str, ...] = Field(
        default=(), description="more arguments for the simulated kubelets, for tests"
    )
    enable_ascend: bool = False
    enable_iluvatar: bool = False
    most_ends: int = Field(
        default=20, ge=1, description="a process that ended so often in ten minutes is given up"
    )

    def local_nodes(self) -> tuple[LocalNode, ...]:
        """Return the nodes whose kubelet and agent run here."""
        if self.own_cards:
            return (own_node(),)
        return simulated_nodes(
            count=self.nodes, gpus=self.gpus, model=self.model, memory_mib=self.memory_mib
        )

    def binding_of(self, node: LocalNode) -> str:
        """Return the way in which containers of this node get their slices."""
        if self.binding != "mixed":
            return self.binding
        return "lock" if self.local_nodes().index(node) % 3 == 2 else "late"

    def vendors(self) -> Vendors:
        """Return the vendors that the services serve with these options.

        Raises: InvalidRequest if the device configuration cannot be read.
        """
        return Vendors.from_config(
            deviceconfig.load(self.device_config),
            enable_ascend=self.enable_ascend,
            enable_iluvatar=self.enable_iluvatar,
        )
