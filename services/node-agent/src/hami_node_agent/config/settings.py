"""What an operator may set; the variables are the fields in capitals behind HAMI_NODE_AGENT_."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from hamicommon.device_config import DEFAULT_MIG_ALLOWLIST, MigAllowance
from hamicommon.settings import (
    FailpointSettings,
    KubernetesSettings,
    NatsSettings,
    TelemetrySettings,
)
from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from hami_node_agent.config import hami_node_config
from hami_node_agent.devices.device_list import DEFAULT_CDI_PREFIX, Strategy
from hami_node_agent.devices.mig_layout import MigStrategy


class Settings(BaseSettings):
    """One node's agent."""

    model_config = SettingsConfigDict(env_prefix="HAMI_NODE_AGENT_", populate_by_name=True)

    nats: NatsSettings = Field(
        default_factory=lambda: NatsSettings()  # type: ignore[call-arg]  # its URL is a variable
    )
    kubernetes: KubernetesSettings = Field(default_factory=KubernetesSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)
    failpoints: FailpointSettings = Field(default_factory=FailpointSettings)

    node_name: str = Field(min_length=1, description="metadata.name of the Node we run on")
    resource_name: str = Field(
        default="nvidia.com/gpu", pattern="^[^/]+/[^/]+$", description="what the kubelet counts"
    )

    register_with_kubelet: bool = Field(
        default=True, description="false: the plugin is served but not registered with the kubelet"
    )
    kubelet_socket_dir: Path = Field(default=Path("/var/lib/kubelet/device-plugins"))
    pod_resources_socket: Path = Field(
        default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        description="the kubelet's PodResources API: who holds which ids",
    )
    kubelet_checkpoint: Path | None = Field(
        default=None,
        description="the kubelet's device checkpoint; "
        "absent: kubelet_internal_checkpoint in the socket directory",
    )

    hook_path: Path = Field(
        default=Path("/usr/local"), description="host base: files go to <hook_path>/vgpu"
    )
    container_hook_path: Path = Field(
        default=Path("/usr/local"), description="the same base as containers see it"
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
    node_config_file: Path = Field(
        default=hami_node_config.DEFAULT_PATH,
        description="HAMi's config.json: overrides of single nodes; optional",
    )
    operating_mode: Literal["hami-core", "mig", "mps", "whole"] = Field(
        default="hami-core",
        description="hami-core: slices, held by libvgpu; mps: these, as clients of the MPS daemon; "
        "mig: instances, made when a container is granted one; whole: a card has one container, "
        "and nothing is preloaded",
    )
    mps_control: str = Field(
        default="nvidia-cuda-mps-control", description="command of the MPS control daemon"
    )
    mps_dir: Path = Field(
        default=Path("/run/nvidia/mps"), description="host folder of the daemon's pipes and logs"
    )
    mps_shm_dir: Path | None = Field(
        default=None,
        description="host folder that is the daemon's /dev/shm, and becomes that of containers; "
        "absent: they have the host's (hostIPC)",
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
    hidden_uuids: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="cards that are not offered, by uuid"
    )
    hidden_indexes: Annotated[tuple[int, ...], NoDecode] = Field(
        default=(), description="cards that are not offered, by NVML index"
    )
    preferred_allocation: bool = Field(
        default=True, description="ask the kubelet to ask us which ids a container should get"
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
    cdi_annotation_prefix: str = Field(default=DEFAULT_CDI_PREFIX)
    gdrcopy_enabled: bool = Field(default=False, description="NVIDIA_GDRCOPY=enabled in answers")
    gds_enabled: bool = Field(default=False, description="NVIDIA_GDS=enabled in answers")
    mofed_enabled: bool = Field(default=False, description="NVIDIA_MOFED=enabled in answers")
    imex_channel_ids: Annotated[tuple[int, ...], NoDecode] = Field(
        default=(), description="comma list of IMEX channels that every container gets"
    )
    imex_required: bool = Field(
        default=False, description="end when a channel of imex_channel_ids has no file"
    )
    dev_root: Path = Field(default=Path("/dev"), description="where /dev/nvidia* are looked for")
    sysfs_root: Path = Field(default=Path("/sys"), description="where NUMA nodes are read")
    cgroup_root: Path = Field(
        default=Path("/sys/fs/cgroup"),
        description="the host's cgroups: a pod whose cgroup has processes has not left",
    )
    proc_root: Path | None = Field(
        default=None,
        description="the host's /proc: shows which processes of containers live and what they "
        "compute; absent: what the processes themselves report counts",
    )
    libcuda_log_level: str = Field(default="1", description="0 error, 1 warn, 3 info, 4 debug")

    grant_public_key_file: Path | None = Field(
        default=None,
        description="Ed25519 public key (PEM) of the scheduler; "
        "absent: grants come from the bus alone",
    )
    grant_wait_s: float = Field(
        default=2.0, ge=0, le=10, description="how long Allocate waits for a grant"
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
    kubelet_dir: Path = Field(
        default=Path("/var/lib/kubelet"),
        description="the kubelet's folder, where it finds DRA drivers by their sockets",
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

    disable_health_checks: str = Field(default="", validation_alias="DP_DISABLE_HEALTHCHECKS")
    enable_health_checks: str = Field(default="", validation_alias="DP_ENABLE_HEALTHCHECKS")
    probe_interval_s: float = Field(default=5.0, gt=0, description="between NVML health probes")
    xid_quiet_s: float = Field(
        default=300.0, ge=0, description="a card is healthy again this long after its last XID"
    )
    nvml_timeout_s: float = Field(
        default=10.0, gt=0, description="longest time of one round of NVML calls"
    )

    heartbeat_s: float = Field(default=10.0, gt=0, description="inventory repeated this often")
    sample_interval_s: float = Field(default=5.0, gt=0, description="usage sampled this often")
    snapshot_interval_s: float = Field(
        default=15.0, gt=0, description="grants compared with the ledger this often"
    )
    sweep_interval_s: float = Field(
        default=2.0, gt=0, description="pods that left are looked for this often"
    )
    enforcement_grace_s: float = Field(
        default=10.0,
        gt=0,
        le=300,
        description="a container that holds more than its grant, or uses a card past the library, "
        "is reported after this long, and after two looks",
    )
    enforcement_overhead_mib: int = Field(
        default=1024,
        ge=0,
        description="most that contexts and modules of one process may hold beyond its container's "
        "grant: the library charges them and can't refuse them",
    )
    enforcement_exempt_namespaces: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("kube-system", "hami-system"),
        description="pods of these namespaces may use cards without a grant (MPS daemons, "
        "monitoring); they are counted and not reported",
    )
    legacy_metrics: bool = Field(
        default=False, description="also HAMi's metric names of before 2.6 (--legacy-metrics)"
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
        "imex_channel_ids",
        "hidden_uuids",
        "hidden_indexes",
        "enforcement_exempt_namespaces",
        mode="before",
    )
    @classmethod
    def _comma_list(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return tuple(part.strip() for part in value.split(",") if part.strip())

    @property
    def checkpoint_path(self) -> Path:
        """Where the kubelet's device checkpoint is."""
        if self.kubelet_checkpoint is not None:
            return self.kubelet_checkpoint
        return self.kubelet_socket_dir / "kubelet_internal_checkpoint"
