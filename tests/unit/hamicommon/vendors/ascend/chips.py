"""Ascend chips of the default configuration, as a node registers them."""

from __future__ import annotations

import json
from typing import Any

from hamicommon.device_config import DeviceConfig
from hamicommon.domain.devices import GpuDevice
from hamicommon.vendors.ascend import Ascend

CONFIG = DeviceConfig().vnpus
assert CONFIG is not None
CHIPS = {chip.common_word: Ascend(chip, CONFIG) for chip in CONFIG.configs}
B3 = CHIPS["Ascend910B3"]
C = CHIPS["Ascend910C"]
P310 = CHIPS["Ascend310P"]
SOFT = {"huawei.com/vnpu-mode": "hami-core"}


def names(name: str) -> tuple[str, str, str]:
    return f"huawei.com/{name}", f"huawei.com/{name}-memory", f"huawei.com/{name}-core"


NPU, MEM, CORES = names("Ascend910B3")


def register(vendor: Ascend, entries: list[dict[str, Any]], **annotations: str) -> dict[str, Any]:
    key = f"hami.io/node-register-{vendor.name}"
    return {"metadata": {"annotations": {key: json.dumps(entries)} | annotations}}


def chips(
    vendor: Ascend, networks: list[object], *, soft: bool = False, slots: int = 7
) -> list[GpuDevice]:
    """Chips 0, 1, ... of these networks; None registers no network."""
    entries = [
        {
            "id": f"npu-{index}",
            "index": index,
            "count": slots,
            "devmem": 65536,
            "devcore": 20,
            "type": vendor.name,
            "health": True,
            "custominfo": {} if network is None else {"NetworkID": network},
        }
        for index, network in enumerate(networks)
    ]
    annotations = {"hami-vnpu-core": "true"} if soft else {}
    return list(vendor.node_devices(register(vendor, entries, **annotations)))
