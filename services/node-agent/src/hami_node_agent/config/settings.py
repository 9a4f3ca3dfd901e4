"""Settings of one node's agent: environment variables HAMI_NODE_AGENT_ and the field's name.

`docs/node-agent.md` lists them; `hami_flags.py` has the names that some had before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from hamicommon.device_config import DEFAULT_MIG_ALLOWLIST, MigAllowance
from hamicommon.settings import KubernetesSettings, NatsSettings, TelemetrySettings
from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from hami_node_agent.devices.device_list import Feature, Strategy
from hami_node_agent.devices.mig_partition import MigStrategy

T = TypeVar("T")


def _split(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(part.strip() for part in value.split(",") if part.strip())


CommaList = Annotated[tuple[T, ...], NoDecode, BeforeValidator(_split)]


class Settings(BaseSettings):
    """One node's agent."""

    model_config = SettingsConfigDict(
        env_prefix="HAMI_NODE_AGENT_", populate_by_name=True, use_attribute_docstrings=True
    )

    nats: NatsSettings = Field(
        default_factory=lambda: NatsSettings()  # type: ignore[call-arg]  # its URL is a variable
    )
    kubernetes: KubernetesSettings = Field(default_factory=KubernetesSettings)
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)

    node_name: str = Field(min_length=1)
    """Name of the Node that the agent runs on."""
    resource_name: str = Field(default="nvidia.com/gpu", pattern="^[^/]+/[^/]+$")
    """Resource that the kubelet counts."""

    kubelet_dir: Path = Path("/var/lib/kubelet")
    """The kubelet's folder: device-plugins, pod-resources and, for claims, plugins."""
    hook_path: Path = Path("/usr/local")
    """Host base: files go to <hook_path>/vgpu, which containers see as /usr/local/vgpu."""
    library_path: Path = Path("/opt/hami/libvgpu.so")
    """File that libvgpu.so is installed from."""
    state_dir: Path = Path("/var/lib/hami/node-agent")
    """Folder of state and limits files; must survive a reboot, so not a tmpfs."""

    device_config_file: Path | None = None
    """HAMi's device-config.yaml: used for options that no environment variable sets."""
    operating_mode: Literal["hami-core", "mig", "mps", "whole"] = "hami-core"
    """Kind of slices: hami-core: held by libvgpu; mps: these, as clients of the MPS daemon; mig:
    instances, made when a container is granted one; whole: a card has one container, and nothing
    is preloaded."""
    mps_dir: Path = Path("/run/nvidia/mps")
    """Host folder of the MPS daemon's pipes and logs; its folder shm, where there is one, is the
    daemon's /dev/shm, and becomes that of containers."""
    mig_strategy: MigStrategy = "none"
    """Offer of existing MIG instances: none; single: resource_name counts them; mixed: a resource
    for each profile, nvidia.com/mig-1g.10gb."""
    mig_profile_allowlist: tuple[MigAllowance, ...] = DEFAULT_MIG_ALLOWLIST
    """Profiles that cards are cut into in operating mode mig, by part of their product name; the
    first entry that fits counts."""
    hidden_devices: CommaList[str] = ()
    """Comma list of cards that are not offered, by uuid or NVML index."""
    fail_on_init_error: bool = True
    """End when there is no driver; false: wait for one."""
    device_split_count: PositiveInt = 10
    """Containers per card."""
    device_memory_scaling: PositiveFloat = 1.0
    """Factor of a card's memory; above 1: oversubscription."""
    device_core_scaling: PositiveFloat = 1.0
    """Factor of a card's cores; above 1: more than 100 % of them are granted."""
    preconfigured_device_memory_mib: NonNegativeInt = 0
    """Memory of cards for which NVML reports none; 0: such cards are left out."""
    disable_core_limit: bool = False
    """Leave out the core limits of all containers."""
    allow_disable_control: bool = False
    """Let a pod's CUDA_DISABLE_CONTROL=true and GPU_CORE_UTILIZATION_POLICY=disable lift its own
    limits, as with HAMi."""
    whole_cards: Literal["preload", "plain"] = "preload"
    """Pods whose containers have whole cards only: preload: with libvgpu; plain: without it, for
    NVLink peer-to-peer and speed; a container's CUDA_DISABLE_CONTROL, which admission writes for
    the pod's annotation hami.io/preload, goes before."""
    enable_numa_topology: bool = False
    """Report NUMA nodes to the kubelet."""
    pass_device_specs: bool = False
    """Also pass the files /dev/nvidia*."""
    device_list_strategy: CommaList[Strategy] = Field(default=(Strategy.ENVVAR,), min_length=1)
    """Ways in which cards are passed to the container runtime: a comma list of envvar,
    volume-mounts, cdi-annotations, cdi-cri."""
    device_id_strategy: Literal["uuid", "index"] = "uuid"
    """Name of cards there: their uuid or NVML index."""
    features: CommaList[Feature] = ()
    """Comma list of features that answers enable: gdrcopy, gds, mofed."""
    imex_channel_ids: CommaList[int] = ()
    """Comma list of IMEX channels that every container gets."""
    imex_required: bool = False
    """End when a channel of imex_channel_ids has no file."""
    dev_root: Path = Path("/dev")
    """Folder of the files nvidia*."""
    sysfs_root: Path = Path("/sys")
    """Folder from which NUMA nodes are read."""
    proc_root: Path | None = None
    """The host's /proc: shows which processes of containers live and what they compute; absent:
    what the processes themselves report counts. The folder cgroup beside it, or else
    /sys/fs/cgroup, has the host's cgroups: a pod with processes has not left."""
    libcuda_log_level: str = "1"
    """Log level of libvgpu: 0 error, 1 warn, 3 info, 4 debug."""

    grant_public_key_file: Path | None = None
    """Ed25519 public key (PEM) of the scheduler; absent: grants come from the bus only."""
    binding: Literal["lock", "late", "auto"] = "auto"
    """Moment of binding: late: slices are passed by CDI when a container starts, which its runtime
    must honour; lock: at Allocate, one pod at a time; auto: late if that is proven, by the
    runtime's own report (cri_socket) or by having no switch for it, otherwise lock."""
    cri_socket: Path | None = None
    """containerd's CRI socket, asked for its configuration only; absent: only what the Node states
    about its runtime is known."""
    crio_config_dir: Path = Path("/etc/crio")
    """CRI-O's configuration: crio.conf and crio.conf.d; absent: its defaults."""
    cdi_dir: Path = Path("/var/run/cdi")
    """Folder in which the container runtime reads CDI files."""
    dra: Literal["off", "auto", "on"] = "off"
    """Offer cards as devices of Dynamic Resource Allocation, too (Kubernetes 1.36): off; on: the
    container runtime must honour CDI; auto: where that is proven as for binding."""
    drain_s: NonNegativeFloat = 15.0
    """Longest time that a stop waits for granted pods that have not arrived."""
    health_checks: CommaList[str] = ()
    """Comma list of XID events that make a card unhealthy, by number or all; with a minus those
    that do not; by default all but errors of applications."""
    xid_quiet_s: NonNegativeFloat = 300.0
    """Time after its last XID until a card is healthy again."""
    heartbeat_s: PositiveFloat = 10.0
    """Pause between reports of the inventory; cards are probed after half of it, grants compared
    with the ledger after one and a half, pods that left looked for after a fifth."""
    sample_interval_s: PositiveFloat = 5.0
    """Pause between samples of usage."""
    enforcement_grace_s: float = Field(default=10.0, gt=0, le=300)
    """Time, and at least two looks, after which a container is reported that holds more than its
    grant or uses a card past the library."""
    enforcement_exempt_namespaces: CommaList[str] = ("kube-system", "hami-system")
    """Comma list of namespaces whose pods may use cards without a grant (MPS daemons, monitoring);
    they are counted and not reported."""
    report_capacity: Literal["off", "on", "remove"] = "off"
    """Memory and cores of all cards in the Node's capacity, for people and Kueue: off; on;
    remove: take them off again, before off. With HAMI_SCHEDULER_SCALE=on the agent starts with on
    only if HAMI_WEBHOOK_MARK_SLICES is on, too."""
    legacy_metrics: bool = False
    """Serve HAMi's metric names of before 2.6, too (deprecated, until 0.4.0)."""
    metrics_bind: str = Field(default=":9394", pattern=r"^.*:\d+$")
    """Address of /metrics, /healthz and /readyz."""
    scrape_audience: str | None = None
    """Audience of the Kubernetes token that /metrics asks for, whose user may get that path; empty:
    the API server's own; absent: no token is asked for."""

    @property
    def device_plugins_dir(self) -> Path:
        """Folder of device plugins' sockets and of the kubelet's checkpoint."""
        return self.kubelet_dir / "device-plugins"

    @property
    def checkpoint_path(self) -> Path:
        """Path of the kubelet's device checkpoint."""
        return self.device_plugins_dir / "kubelet_internal_checkpoint"

    @property
    def pod_resources_socket(self) -> Path:
        """Socket of the kubelet's PodResources API."""
        return self.kubelet_dir / "pod-resources" / "kubelet.sock"

    @property
    def cgroup_root(self) -> Path:
        """Folder of the host's cgroups."""
        sibling = (self.proc_root or Path("/proc")).parent / "cgroup"
        return sibling if sibling.is_dir() else Path("/sys/fs/cgroup")

    @property
    def mps_shm_dir(self) -> Path | None:
        """Folder that is the MPS daemon's /dev/shm; None: containers use the host's (hostIPC)."""
        shm = self.mps_dir / "shm"
        return shm if shm.is_dir() else None

    @property
    def probe_interval_s(self) -> float:
        """Interval between health probes."""
        return self.heartbeat_s / 2

    @property
    def snapshot_interval_s(self) -> float:
        """Interval between comparisons of grants with the ledger."""
        return self.heartbeat_s * 1.5

    @property
    def sweep_interval_s(self) -> float:
        """Interval between searches for pods that left."""
        return self.heartbeat_s / 5
