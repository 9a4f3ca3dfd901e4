"""What `hamictl up` was asked for; written for the supervisor, which is a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hamicommon import device_config as deviceconfig
from hamicommon.vendors.registry import Vendors
from pydantic import BaseModel, ConfigDict, Field

from hamilocal.system.nodes import LocalNode, own_node, simulated_nodes


class UpOptions(BaseModel):
    """The flags of `hamictl up` that shape the system."""

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
        default=(), description="nodes whose kubelet and node-agent somebody else runs"
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
        """The nodes whose kubelet and agent run here."""
        if self.own_cards:
            return (own_node(),)
        return simulated_nodes(
            count=self.nodes, gpus=self.gpus, model=self.model, memory_mib=self.memory_mib
        )

    def binding_of(self, node: LocalNode) -> str:
        """How containers of this local node get their slices."""
        if self.binding != "mixed":
            return self.binding
        return "lock" if self.local_nodes().index(node) % 3 == 2 else "late"

    def vendors(self) -> Vendors:
        """What the services serve with these flags.

        Raises: InvalidRequest when the device configuration cannot be read.
        """
        return Vendors.from_config(
            deviceconfig.load(self.device_config),
            enable_ascend=self.enable_ascend,
            enable_iluvatar=self.enable_iluvatar,
        )
