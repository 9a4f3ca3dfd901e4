"""The blocks of vendors that have little to configure (protocol 1.0.1).

The field `resource_count_name` is the key `resourceCountName`. A vendor whose count resource is
empty is not served.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hamicommon.errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,40}[A-Za-z0-9])?")


def check_vendor_name(name: str) -> None:
    """Raises InvalidRequest when `name` cannot be part of an annotation's key."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"commonWord is {name!r}: expected letters, digits, '.', '_' and '-', because "
            "annotations are named after it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CambriconConfig:
    """`cambricon:`, the vendor `MLU`."""

    resource_count_name: str = "cambricon.com/vmlu"
    resource_memory_name: str = "cambricon.com/mlu.smlu.vmemory"
    resource_core_name: str = "cambricon.com/mlu.smlu.vcore"


@dataclass(frozen=True, slots=True, kw_only=True)
class HygonConfig:
    """`hygon:`, the vendor `DCU`."""

    resource_count_name: str = "hygon.com/dcunum"
    resource_memory_name: str = "hygon.com/dcumem"
    resource_core_name: str = "hygon.com/dcucores"
    memory_factor: int = 1
    """MiB per unit of the memory resource; less than 1 counts as 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaxConfig:
    """`metax:`, the vendors `Metax-GPU` (whole cards) and `Metax-SGPU` (slices)."""

    resource_count_name: str = "metax-tech.com/gpu"
    resource_v_count_name: str = "metax-tech.com/sgpu"
    resource_v_memory_name: str = "metax-tech.com/vmemory"
    resource_v_core_name: str = "metax-tech.com/vcore"
    sgpu_topology_aware: bool = False
    """Count link zones in the node score; a pod's annotation overrides it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnflameConfig:
    """`enflame:`, the vendors `GCU` (whole cards) and `Enflame` (slices).

    The names of slices are never empty: HAMi, too, puts its defaults in their place.
    """

    resource_name_gcu: str = "enflame.com/gcu"
    resource_name_drs_gcu: str = ""
    """Resource whose value is the size of the slice, not a count; empty: `resource_name_vgcu`."""
    resource_name_gcu_memory: str = ""
    resource_name_gcu_core: str = ""
    resource_name_vgcu: str = ""
    """Name that older versions have for `resource_name_drs_gcu`; empty once it is used for it."""
    resource_name_vgcu_percentage: str = ""
    """Read by older versions; kept so that their files are read."""

    def __post_init__(self) -> None:
        drs = self.resource_name_drs_gcu
        names = {
            "resource_name_drs_gcu": drs or self.resource_name_vgcu or "enflame.com/drs-gcu",
            "resource_name_gcu_memory": self.resource_name_gcu_memory or "enflame.com/gcu-memory",
            "resource_name_gcu_core": self.resource_name_gcu_core or "enflame.com/gcu-core",
            "resource_name_vgcu": self.resource_name_vgcu if drs else "",
        }
        for field, name in names.items():
            object.__setattr__(self, field, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MthreadsConfig:
    """`mthreads:`, the vendor `Mthreads`."""

    resource_count_name: str = "mthreads.com/vgpu"
    resource_memory_name: str = "mthreads.com/sgpu-memory"
    resource_core_name: str = "mthreads.com/sgpu-core"


@dataclass(frozen=True, slots=True, kw_only=True)
class KunlunConfig:
    """`kunlun:`, the vendors `kunlun` (whole cards) and `XPU` (slices)."""

    resource_count_name: str = "kunlunxin.com/xpu"
    resource_v_count_name: str = "kunlunxin.com/vxpu"
    resource_v_memory_name: str = "kunlunxin.com/vxpu-memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsNeuronConfig:
    """`awsneuron:`, the vendor `AWSNeuron`."""

    resource_count_name: str = "aws.amazon.com/neuron"
    resource_core_name: str = "aws.amazon.com/neuroncore"


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdConfig:
    """`amd:`, the vendor `AMD`."""

    resource_count_name: str = "amd.com/gpu"
    resource_core_name: str = "amd.com/gpucores"
    resource_memory_name: str = "amd.com/gpumem"


@dataclass(frozen=True, slots=True, kw_only=True)
class VastaiConfig:
    """`vastai:`, the vendor `Vastai`."""

    resource_count_name: str = "vastaitech.com/va"


@dataclass(frozen=True, slots=True, kw_only=True)
class BirenConfig:
    """`biren:`, the vendor `Biren`."""

    resource_count_name: str = "birentech.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class IluvatarChip:
    """An entry of the list `iluvatars:`; each chip is a vendor of its own."""

    chip_name: str
    common_word: str
    """The vendor's name; annotations are named after it."""
    resource_count_name: str
    resource_memory_name: str = ""
    resource_core_name: str = ""

    def __post_init__(self) -> None:
        check_vendor_name(self.common_word)
        if not self.chip_name or not self.resource_count_name:
            raise InvalidRequest("chipName and resourceCountName must not be empty")


ILUVATAR_CHIPS = tuple(
    IluvatarChip(
        chip_name=chip,
        common_word=chip,
        resource_count_name=f"iluvatar.ai/{chip}-vgpu",
        resource_memory_name=f"iluvatar.ai/{chip}.vMem",
        resource_core_name=f"iluvatar.ai/{chip}.vCore",
    )
    for chip in ("MR-V100", "MR-V50", "BI-V150", "BI-V100")
)
"""The chart's list."""
