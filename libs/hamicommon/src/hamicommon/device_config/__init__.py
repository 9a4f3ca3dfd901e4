"""HAMi's `device-config.yaml`: which resources a vendor's cards are asked for by, and the defaults.

In: a path (or none); out: a frozen `DeviceConfig`, one block per vendor. The keys and their
defaults are those of HAMi 2.10's chart (protocol 1), so a file written for HAMi is read as it
stands. `file.py` reads it whole, `reader.py` one block by the fields of its dataclass.
`vendors.registry` makes the vendors from it; the node-agent reads the node defaults
(`device_split_count` and the like) from it.
"""

from hamicommon.device_config.ascend import VnpuChip, VnpusConfig, VnpuTemplate
from hamicommon.device_config.blocks import (
    AmdConfig,
    AwsNeuronConfig,
    BirenConfig,
    CambriconConfig,
    EnflameConfig,
    HygonConfig,
    IluvatarChip,
    KunlunConfig,
    MetaxConfig,
    MthreadsConfig,
    VastaiConfig,
)
from hamicommon.device_config.file import DeviceConfig, load, parse
from hamicommon.device_config.nvidia import DEFAULT_MIG_ALLOWLIST, MigAllowance, NvidiaConfig
from hamicommon.device_config.reader import INT32_MAX

__all__ = [
    "DEFAULT_MIG_ALLOWLIST",
    "INT32_MAX",
    "AmdConfig",
    "AwsNeuronConfig",
    "BirenConfig",
    "CambriconConfig",
    "DeviceConfig",
    "EnflameConfig",
    "HygonConfig",
    "IluvatarChip",
    "KunlunConfig",
    "MetaxConfig",
    "MigAllowance",
    "MthreadsConfig",
    "NvidiaConfig",
    "VastaiConfig",
    "VnpuChip",
    "VnpuTemplate",
    "VnpusConfig",
    "load",
    "parse",
]
