"""Random nodes, each vendor's cards in the form in which that vendor's plugin reports them."""

import json
from random import Random

from hamicommon.k8s.types import Json

from tests.reference.requests import ASCEND, ILUVATAR

NVIDIA_TYPES = ["NVIDIA A100-SXM4-40GB", "NVIDIA A10", "NVIDIA H100-PCIE-80GB", "NVIDIA"]


MIG_PROFILES = [
    ("1g.5gb", 5120, 14, 1, [(start, 1) for start in range(7)]),
    ("2g.10gb", 10240, 28, 2, [(0, 2), (2, 2), (4, 2)]),
    ("3g.20gb", 20480, 42, 4, [(0, 4), (4, 4)]),
    ("7g.40gb", 40960, 100, 8, [(0, 8)]),
]


MIG_SHARE = 0.15
"""Share of MIG cards among the NVIDIA cards."""


def flip(r: Random, chance: float) -> bool:
    """True with the given probability."""
    return r.random() < chance


def node(r: Random, name: str, vendors: list[str]) -> Json:
    """A node with the cards of some of the vendors."""
    found: Json = {
        "kind": "Node",
        "metadata": {"name": name, "annotations": {}, "labels": {}},
        "status": {"capacity": {}, "allocatable": {}},
    }
    for vendor in vendors:
        if flip(r, 0.9):
            add_cards(r, found, vendor)
    found["status"]["allocatable"] |= found["status"]["capacity"]
    if flip(r, 0.03):
        del found["status"]["allocatable"]
    return found


def add_cards(r: Random, into: Json, vendor: str) -> None:
    """Adds cards of one vendor, in the form in which its plugin reports them."""
    name, annotations = into["metadata"]["name"], into["metadata"]["annotations"]
    capacity = into["status"]["capacity"]
    number = r.choice([1, 2, 2, 4, 8])
    if vendor == "NVIDIA":
        cards = [nvidia_card(r, name, index) for index in range(number)]
        annotations["hami.io/node-nvidia-register"] = json.dumps(cards)
        capacity["nvidia.com/gpu"] = "0" if flip(r, 0.03) else "10"
        ids = [card["id"] for card in cards]
        if flip(r, 0.15):
            annotations["hami.io/device-cordon"] = ", ".join([*r.sample(ids, 1), ""])
        if flip(r, 0.3):
            scores = [
                {"uuid": a, "score": {b: r.choice([0, 10, 20, 100]) for b in ids if a != b}}
                for a in ids
            ]
            annotations["hami.io/node-nvidia-score"] = json.dumps(scores)
    elif vendor in ("DCU", *ILUVATAR):
        key = "hami.io/node-dcu-register" if vendor == "DCU" else f"hami.io/node-{vendor}-register"
        kind = "DCU-Z100L" if vendor == "DCU" else vendor
        annotations[key] = "".join(
            f"{vendor}-{name}-{index},{r.choice([1, 4, 100])},{r.choice([16384, 32768])},100,"
            f"{kind},{r.randint(0, 1)},{'false' if flip(r, 0.1) else 'true'}:"
            for index in range(number)
        )
    elif vendor in ("AMD", "XPU", "Vastai", "Biren", *ASCEND):
        add_registered(r, into, vendor, 8 if vendor == "XPU" else number)
    elif vendor == "Metax-SGPU":
        annotations["metax-tech.com/node-gpu-devices"] = json.dumps(
            [
                {
                    "uuid": f"SG-{name}-{index}",
                    "model": "C500",
                    "totalDevCount": r.choice([1, 16]),
                    "totalCompute": 100,
                    "totalVRam": 65536,
                    "availableDevCount": 16,
                    "availableCompute": 100,
                    "availableVRam": 65536,
                    "numa": r.randint(0, 1),
                    "healthy": not flip(r, 0.1),
                    "qosPolicy": r.choice(["", "best-effort", "fixed-share"]),
                    "linkZone": r.choice([0, 1, 2]),
                }
                for index in range(number)
            ]
        )
    elif vendor == "Enflame":
        annotations["enflame.com/gcu-drs-capacity"] = json.dumps(
            {
                "devices": [
                    {
                        "index": str(index),
                        "minor": str(index),
                        "capacity": r.choice([6, "6"]),
                    }
                    for index in range(number)
                ],
                "profiles": {"1g.8gb": "0", "2g.16gb": "1", "3g.24gb": "2", "6g.48gb": "3"},
            }
        )
    else:
        add_capacity(r, into, vendor, number)


def nvidia_card(r: Random, name: str, index: int) -> Json:
    """Return a card as the plugin registers it, without fields that are zero."""
    mig = flip(r, MIG_SHARE)
    fields: Json = {
        "id": f"GPU-{name}-{index}",
        "index": index,
        "count": 7 if mig else r.choice([1, 2, 10]),
        "devmem": 40960 if mig else r.choice([8000, 40960, 16001]),
        "devcore": r.choice([100, 100, 200, 300]) if not mig else 100,
        "type": NVIDIA_TYPES[0] if mig else r.choice(NVIDIA_TYPES),
        "numa": index // 2 % 2 if flip(r, 0.8) else r.randint(0, 1),
        "mode": "mig" if mig else r.choice(["hami-core"] * 8 + ["", "mps"]),
        "health": not flip(r, 0.08),
    }
    if mig:
        fields["migProfiles"] = [
            {
                "name": profile,
                "memoryMB": memory,
                "core": core,
                "sliceCount": slices,
                "placements": [{"start": start, "size": size} for start, size in places],
            }
            for profile, memory, core, slices, places in MIG_PROFILES
        ]
    return {key: value for key, value in fields.items() if value}


def add_registered(r: Random, into: Json, vendor: str, number: int) -> None:
    """Vendors with NVIDIA's JSON form."""
    name = into["metadata"]["name"]
    shapes: dict[str, Json] = {
        "AMD": {"count": 4, "devmem": 196608, "devcore": 304, "type": "AMD Instinct MI300X"},
        "XPU": {"count": 4, "devmem": 98304, "devcore": 100, "type": "XPU-P800"},
        "Vastai": {"count": 1, "devmem": 32768, "devcore": 100, "type": "Vastai"},
        "Biren": {"count": r.choice([1, 2]), "devmem": 32768, "devcore": 100, "type": "Biren"},
    }
    ascend = {"count": 7, "devmem": 65536, "devcore": r.choice([20, 30]), "type": vendor}
    shape = shapes.get(vendor, ascend)
    die, networks = flip(r, 0.6), flip(r, 0.8)
    cards = []
    for index in range(number):
        card: Json = {"id": f"{vendor}-{name}-{index}", "index": index, "health": not flip(r, 0.08)}
        card |= shape | {"numa": r.randint(0, 1)}
        if vendor == "Vastai" and die:
            card["custominfo"] = {"AIC": str(index // 2), "DeviceStrategy": "die"}
        if vendor in ASCEND and networks:
            card["custominfo"] = {"NetworkID": index // 2 if flip(r, 0.7) else 0}
        cards.append({key: value for key, value in card.items() if value})
    keys = {
        "AMD": "hami.io/node-amd-register",
        "XPU": "hami.io/node-register-xpu",
        "Vastai": "hami.io/node-va-register",
        "Biren": "hami.io/node-biren-register",
    }
    into["metadata"]["annotations"][keys.get(vendor, f"hami.io/node-register-{vendor}")] = (
        json.dumps(cards)
    )
    if vendor == "AMD":
        into["status"]["capacity"]["amd.com/gpu"] = str(4 * number)
    if vendor in ASCEND and flip(r, 0.5):
        into["metadata"]["annotations"]["hami-vnpu-core"] = r.choice(["true", "false"])


def add_capacity(r: Random, into: Json, vendor: str, number: int) -> None:
    """Vendors of which only the kubelet knows."""
    capacity, annotations = into["status"]["capacity"], into["metadata"]["annotations"]
    if vendor == "MLU":
        capacity["cambricon.com/vmlu"] = str(number)
        capacity["cambricon.com/mlu.smlu.vmemory"] = str(number * r.choice([64, 192]))
        capacity["cambricon.com/mlu.smlu.vcore"] = str(number * 100)
    elif vendor == "Mthreads":
        capacity["mthreads.com/vgpu"] = str(100 * number)
        capacity["mthreads.com/sgpu-memory"] = str(96 * number)
        capacity["mthreads.com/sgpu-core"] = str(16 * number)
    elif vendor == "Metax-GPU":
        capacity["metax-tech.com/gpu"] = str(number)
        for key in ("losses", "scores"):
            if flip(r, 0.5):
                by_count = {str(n): r.choice([0, 50, 100, 500]) for n in (1, 2, 4) if flip(r, 0.8)}
                annotations[f"metax-tech.com/gpu.topology.{key}"] = json.dumps(by_count)
    elif vendor == "kunlun":
        capacity["kunlunxin.com/xpu"] = "8"
    elif vendor == "GCU":
        capacity["enflame.com/gcu"] = str(number)
    elif vendor == "AWSNeuron":
        number = r.choice([4, 8, 16])
        capacity["aws.amazon.com/neuron"] = str(number)
        capacity["aws.amazon.com/neuroncore"] = str(2 * number)
        kind = r.choice(["inf2.xlarge", "trn1.2xlarge", ""])
        if kind:
            into["metadata"]["labels"]["node.kubernetes.io/instance-type"] = kind
