"""Settings of one node's agent: the fields in capitals behind HAMI_NODE_AGENT_ are variables.

`docs/node-agent.md` lists them; `hami_flags.py` has the names that some had before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from hamicommon.device_config import DEFAULT_MIG_ALLOWLIST, MigAllowance
from hamicommon.settings import KubernetesSettings, NatsSettings, TelemetrySettings
from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from hami_node_agent.devices.device_list import Feature, Strategy
from hami_node_agent.devices.mig_layout import MigStrategy


class Settings(BaseSettings):
    """One node's agent."""

    model_config = SettingsConfigDict(env_prefix="HAMI_NODE_AGENT_", populate_by_name=True)

    nats: NatsSettings = Field(
        default_factory=lambda: NatsSettings()  # type: ignore[call-arg]  # its URL is a variable
    )
    kubernetes: KubernetesSettings = Field(default_factory=KubernetesSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)

    node_name: str = Field(min_length=1, description="metadata.name of the Node we run on")
    resource_name: str = Field(
        default="nvidia.com/gpu", pattern="^[^/]+/[^/]+$", description="what the kubelet counts"
    )

    kubelet_dir: Path = Field(
        default=Path("/var/lib/kubelet"),
        description="the kubelet's folder: device-plugins, pod-resources and, for claims, plugins",
    )
    hook_path: Path = Field(
        default=Path("/usr/local"),
        description="host base: files go to <hook_path>/vgpu, which containers see as "
        "/usr/local/vgpu",
    )
    library_path: Path = Field(
        default=Path("/opt/hami/libvgpu.so"), description="where libvgpu.so is installed from"
    )
    state_dir: Path = Field(
        default=Path("/var/lib/hami/node-agent"),
        description="state and limits files; must survive a reboot, so not a tmpfs",
    )

    device_config_file: Path | None = Field(
        default=None,
        description="HAMi's device-config.yaml: used for options that no environment variable sets",
    )
    operating_mode: Literal["hami-core", "mig", "mps", "whole"] = Field(
        default="hami-core",
        description="hami-core: slices, held by libvgpu; mps: these, as clients of the MPS daemon; "
        "mig: instances, made when a container is granted one; whole: a card has one container, "
        "and nothing is preloaded",
    )
    mps_dir: Path = Field(
        default=Path("/run/nvidia/mps"),
        description="host folder of the MPS daemon's pipes and logs; its folder shm, where there "
        "is one, is the daemon's /dev/shm, and becomes that of containers",
    )
    mig_strategy: MigStrategy = Field(
        default="none",
        description="existing MIG instances: none: not offered; single: they are what "
        "resource_name counts; mixed: a resource for each profile, nvidia.com/mig-1g.10gb",
    )
    mig_profile_allowlist: tuple[MigAllowance, ...] = Field(
        default=DEFAULT_MIG_ALLOWLIST,
        description="in operating mode mig: which profiles cards are cut into, by part of their "
        "product name; the first entry that fits counts",
    )
    hidden_devices: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="comma list of cards that are not offered, by uuid or NVML index"
    )
    fail_on_init_error: bool = Field(
        default=True,
        description="true: end when there is no driver; false: wait for one",
    )
    device_split_count: int = Field(default=10, ge=1, description="containers per card")
    device_memory_scaling: float = Field(default=1.0, gt=0, description="> 1: oversubscription")
    device_core_scaling: float = Field(
        default=1.0, gt=0, description="> 1: more than 100 % of a card's cores are granted"
    )
    preconfigured_device_memory_mib: int = Field(
        default=0,
        ge=0,
        description="memory of cards for which NVML reports none; 0: such cards are left out",
    )
    disable_core_limit: bool = Field(default=False, description="containers have no core limit")
    allow_disable_control: bool = Field(
        default=False,
        description="true: a pod's CUDA_DISABLE_CONTROL=true and "
        "GPU_CORE_UTILIZATION_POLICY=disable lift its own limits, as with HAMi",
    )
    whole_cards: Literal["preload", "plain"] = Field(
        default="preload",
        description="pods whose containers have whole cards only: preload: with libvgpu; plain: "
        "without it, for NVLink peer-to-peer and speed; a container's CUDA_DISABLE_CONTROL, which "
        "admission writes for the pod's annotation hami.io/preload, goes before",
    )
    enable_numa_topology: bool = Field(
        default=False, description="report NUMA nodes to the kubelet"
    )
    pass_device_specs: bool = Field(default=False, description="also pass the files /dev/nvidia*")
    device_list_strategy: Annotated[tuple[Strategy, ...], NoDecode] = Field(
        default=(Strategy.ENVVAR,),
        min_length=1,
        description="how cards are passed to the container runtime: a comma list of envvar, "
        "volume-mounts, cdi-annotations, cdi-cri",
    )
    device_id_strategy: Literal["uuid", "index"] = Field(
        default="uuid", description="cards named there by uuid or by NVML index"
    )
    features: Annotated[tuple[Feature, ...], NoDecode] = Field(
        default=(), description="comma list of what answers enable besides: gdrcopy, gds, mofed"
    )
    imex_channel_ids: Annotated[tuple[int, ...], NoDecode] = Field(
        default=(), description="comma list of IMEX channels that every container gets"
    )
    imex_required: bool = Field(
        default=False, description="end when a channel of imex_channel_ids has no file"
    )
    dev_root: Path = Field(default=Path("/dev"), description="where /dev/nvidia* are looked for")
    sysfs_root: Path = Field(default=Path("/sys"), description="where NUMA nodes are read")
    proc_root: Path | None = Field(
        default=None,
        description="the host's /proc: shows which processes of containers live and what they "
        "compute; absent: what the processes themselves report counts. The folder cgroup beside "
        "it, or else /sys/fs/cgroup, has the host's cgroups: a pod with processes has not left",
    )
    libcuda_log_level: str = Field(default="1", description="0 error, 1 warn, 3 info, 4 debug")

    grant_public_key_file: Path | None = Field(
        default=None,
        description="Ed25519 public key (PEM) of the scheduler; "
        "absent: grants come from the bus alone",
    )
    binding: Literal["lock", "late", "auto"] = Field(
        default="lock",
        description="lock: slices are passed at Allocate, one pod at a time; late: by CDI when a "
        "container starts, which its runtime must honour; auto: late where that is proven, by "
        "the runtime's own report (cri_socket) or by having no switch for it",
    )
    cri_socket: Path | None = Field(
        default=None,
        description="the container runtime's CRI socket, asked for its configuration alone; "
        "absent: only what the Node states about its runtime is known",
    )
    cdi_dir: Path = Field(
        default=Path("/var/run/cdi"), description="where the container runtime reads CDI files"
    )
    dra: Literal["off", "auto", "on"] = Field(
        default="off",
        description="cards are devices of Dynamic Resource Allocation, too (Kubernetes 1.36): off; "
        "on: the container runtime must honour CDI; auto: where that is proven as for binding",
    )
    drain_s: float = Field(
        default=15.0,
        ge=0,
        description="longest time that a stop waits for granted pods that have not arrived",
    )
    unmanaged_pods: Literal["refuse", "adopt"] = Field(
        default="refuse",
        description="pods that take devices past our scheduler: refuse: they fail; "
        "adopt: the scheduler is asked for a grant of what the kubelet gave them, if it has room",
    )

    health_checks: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="comma list of XID events that make a card unhealthy, by number or all; with "
        "a minus those that do not; by default all but errors of applications",
    )
    xid_quiet_s: float = Field(
        default=300.0, ge=0, description="a card is healthy again this long after its last XID"
    )
    heartbeat_s: float = Field(
        default=10.0,
        gt=0,
        description="inventory is repeated this often; cards are probed after half of it, grants "
        "compared with the ledger after one and a half, pods that left looked for after a fifth",
    )
    sample_interval_s: float = Field(default=5.0, gt=0, description="usage sampled this often")
    enforcement_grace_s: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="a container that holds more than its grant, or uses a card past the library, "
        "is reported after this long, and after two looks",
    )
    enforcement_exempt_namespaces: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("kube-system", "hami-system"),
        description="pods of these namespaces may use cards without a grant (MPS daemons, "
        "monitoring); they are counted and not reported",
    )
    legacy_metrics: bool = Field(
        default=False,
        description="also HAMi's metric names of before 2.6 (deprecated, until 0.4.0)",
    )
    metrics_bind: str = Field(
        default=":9394", pattern=r"^.*:\d+$", description="/metrics, /healthz, /readyz"
    )
    scrape_tokens: bool = Field(
        default=False,
        description="/metrics wants a Kubernetes token whose user may get the path /metrics",
    )
    scrape_audience: str = Field(
        default="hami-metrics",
        description="audience of those tokens; empty: the API server's own",
    )

    @field_validator(
        "device_list_strategy",
        "features",
        "imex_channel_ids",
        "hidden_devices",
        "health_checks",
        "enforcement_exempt_namespaces",
        mode="before",
    )
    @classmethod
    def _comma_list(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @property
    def device_plugins_dir(self) -> Path:
        """The folder of device plugins' sockets and of the kubelet's checkpoint."""
        return self.kubelet_dir / "device-plugins"

    @property
    def checkpoint_path(self) -> Path:
        """The kubelet's device checkpoint."""
        return self.device_plugins_dir / "kubelet_internal_checkpoint"

    @property
    def pod_resources_socket(self) -> Path:
        """The kubelet's PodResources API: who holds which ids."""
        return self.kubelet_dir / "pod-resources" / "kubelet.sock"

    @property
    def cgroup_root(self) -> Path:
        """The host's cgroups."""
        beside = (self.proc_root or Path("/proc")).parent / "cgroup"
        return beside if beside.is_dir() else Path("/sys/fs/cgroup")

    @property
    def mps_shm_dir(self) -> Path | None:
        """The MPS daemon's /dev/shm; None: containers have the host's (hostIPC)."""
        shm = self.mps_dir / "shm"
        return shm if shm.is_dir() else None

    @property
    def probe_interval_s(self) -> float:
        """Pause between health probes."""
        return self.heartbeat_s / 2

    @property
    def snapshot_interval_s(self) -> float:
        """Pause between comparisons of the grants with the ledger."""
        return self.heartbeat_s * 1.5

    @property
    def sweep_interval_s(self) -> float:
        """Pause between looks for pods that left."""
        return self.heartbeat_s / 5
