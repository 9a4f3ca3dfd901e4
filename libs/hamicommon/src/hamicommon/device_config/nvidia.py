"""The `nvidia:` block of the device configuration (protocol 1.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hamicommon.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAllowance:
    """Which MIG profiles may be used on cards whose product name contains one of `models`."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.models or not self.profiles:
            raise InvalidRequest("expected at least one model and one profile")
        for profile in self.profiles:
            slices, _, rest = profile.partition(".")
            if not rest or len(slices) < 2 or not slices.endswith("g"):
                raise InvalidRequest(f"profile {profile!r} is malformed: write it like 1g.10gb")


_MIG_TABLE = (
    ("A30", "1g.6gb 2g.12gb 4g.24gb"),
    ("A100-SXM4-40GB|A100-40GB-PCIe|A100-PCIE-40GB", "1g.5gb 2g.10gb 3g.20gb 7g.40gb"),
    ("A100-SXM4-80GB|A100-80GB-PCIe|A100-PCIE-80GB", "1g.10gb 2g.20gb 3g.40gb 7g.79gb"),
    ("H100-PCIE-80GB|H100-SXM5-80GB", "1g.10gb 2g.20gb 3g.40gb 7g.80gb"),
    ("H100-PCIE-94GB|H100-SXM5-94GB", "1g.12gb 2g.24gb 3g.47gb 7g.94gb"),
    ("H20|H100 on GH200", "1g.12gb 2g.24gb 3g.48gb 7g.96gb"),
    ("H200 NVL|H200-SXM5", "1g.18gb 2g.35gb 3g.71gb 7g.141gb"),
    ("B200", "1g.23gb 2g.45gb 3g.90gb 7g.180gb"),
    ("RTX PRO 6000 Blackwell Server Edition", "1g.24gb 2g.48gb 4g.96gb"),
)

DEFAULT_MIG_ALLOWLIST = tuple(
    MigAllowance(models=tuple(models.split("|")), profiles=tuple(profiles.split()))
    for models, profiles in _MIG_TABLE
)
"""The chart's table; a model is a part of the product name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaConfig:
    """The block; the field `resource_count_name` is the key `resourceCountName`."""

    OLDER_KEYS: ClassVar[frozenset[str]] = frozenset({"knownMigGeometries"})

    resource_count_name: str = "nvidia.com/gpu"
    resource_memory_name: str = "nvidia.com/gpumem"
    resource_memory_percentage_name: str = "nvidia.com/gpumem-percentage"
    resource_core_name: str = "nvidia.com/gpucores"
    resource_priority_name: str = "nvidia.com/priority"
    overwrite_env: bool = False
    """Give containers without a card `NVIDIA_VISIBLE_DEVICES=none`."""
    default_memory: int = 0
    """MiB for a container that asks for neither memory nor percentage; 0 means the whole card's."""
    default_cores: int = 0
    """Percent for a container that asks for no cores."""
    default_gpu_num: int = 1
    """Cards for a container that asks only for memory or cores; 0 means: not ours."""
    memory_factor: int = 1
    """MiB per unit of the memory resource; less than 1 counts as 1."""
    disable_core_limit: bool = False
    gpu_core_policy: str = "default"
    runtime_class_name: str = ""
    mig_profile_allowlist: tuple[MigAllowance, ...] = DEFAULT_MIG_ALLOWLIST
    device_split_count: int = 10
    """Slots per card (a node may override this and the following)."""
    device_memory_scaling: float = 1.0
    device_core_scaling: float = 1.0
    pre_configured_device_memory: int = 0
    """MiB of a card whose driver can't report its memory."""
    lib_cuda_log_level: str = "1"
    enable_numa_topology: bool = False
