"""The cards of a node (protocol 1.1 to 1.16, 2.1).

A card is a dict: `vendor`, `id`, `index`, `count`, `mem`, `core`, `type`, `numa`, `mode`, `health`,
`cordoned`, `profiles`, `info`, and its usage: `used`, `used_mem`, `used_core`, `mig` (the
occupied (start, size) pairs), and for MetaX `classes` and `policies` of the slices on it.
"""

import json
from typing import Any

from hamicommon.k8s.types import Json

from tests.reference.requests import ASCEND, ILUVATAR

Card = dict[str, Any]

REGISTER = {
    "NVIDIA": "hami.io/node-nvidia-register",
    "XPU": "hami.io/node-register-xpu",
    "AMD": "hami.io/node-amd-register",
    "Vastai": "hami.io/node-va-register",
    "Biren": "hami.io/node-biren-register",
    **{chip: f"hami.io/node-register-{chip}" for chip in ASCEND},
}
CSV_REGISTER = {
    "DCU": "hami.io/node-dcu-register",
    **{chip: f"hami.io/node-{chip}-register" for chip in ILUVATAR},
}


def card(vendor: str, identity: str, index: int, **fields: Any) -> Card:
    """Return a healthy, unused card."""
    return {
        "vendor": vendor,
        "id": identity,
        "index": index,
        "count": 0,
        "mem": 0,
        "core": 0,
        "type": vendor,
        "numa": 0,
        "mode": "",
        "health": True,
        "cordoned": False,
        "profiles": [],
        "info": {},
        "used": 0,
        "used_mem": 0,
        "used_core": 0,
        "mig": [],
        "classes": [],
        "policies": [],
    } | fields


def from_json(vendor: str, text: str) -> list[Card]:
    """Read an inventory (sheet 2.1.1); missing fields are zero."""
    found = []
    for entry in json.loads(text):
        found.append(
            card(
                vendor,
                entry["id"],
                entry.get("index", 0),
                count=entry.get("count", 0),
                mem=entry.get("devmem", 0),
                core=100 if vendor == "Vastai" else entry.get("devcore", 0),
                type=entry.get("type", ""),
                numa=entry.get("numa", 0),
                mode=entry.get("mode", ""),
                health=entry.get("health", False),
                profiles=entry.get("migProfiles", []),
                info=entry.get("custominfo", {}),
            )
        )
    return found


def from_csv(vendor: str, text: str) -> list[Card]:
    """Sheet 2.1.2, the form of seven fields."""
    found = []
    for segment in text.split(":"):
        if segment:
            identity, count, mem, core, kind, numa, health, *rest = segment.split(",")
            found.append(
                card(
                    vendor,
                    identity,
                    int(rest[0]) if rest else 0,
                    count=int(count),
                    mem=int(mem),
                    core=int(core),
                    type=kind,
                    numa=int(numa),
                    health=health == "true",
                )
            )
    return found


def from_capacity(vendor: str, node: Json) -> list[Card]:
    """Cards that only the kubelet reports (protocol 1.3, 1.6, 1.7, 1.9, 1.11, 1.13)."""
    name = node["metadata"]["name"]
    capacity = node["status"].get("capacity") or {}

    def number(resource: str) -> int:
        return int(capacity.get(resource, 0))

    if vendor == "MLU":
        cores, units = (
            number("cambricon.com/mlu.smlu.vcore"),
            number("cambricon.com/mlu.smlu.vmemory"),
        )
        return [
            card(
                vendor,
                f"{name}-cambricon-mlu-{i}",
                i,
                count=100,
                core=100,
                mem=units * 256 * 100 // cores,
            )
            for i in range(-(-cores // 100))
        ]
    if vendor == "Mthreads":
        cores, units = number("mthreads.com/sgpu-core"), number("mthreads.com/sgpu-memory")
        return [
            card(
                vendor, f"{name}-mthreads-{i}", i, count=100, core=16, mem=units * 512 * 16 // cores
            )
            for i in range(-(-cores // 16))
        ]
    if vendor == "Metax-GPU":
        return [
            card(vendor, f"{name}-metax-{i}", i, count=1, mem=65536, core=100)
            for i in range(number("metax-tech.com/gpu"))
        ]
    if vendor == "kunlun":
        total = number("kunlunxin.com/xpu")
        return [
            card(
                vendor,
                f"{name}-kunlun-{i}",
                i,
                count=100,
                mem=98304,
                core=100,
                numa=0 if i < total / 2 else 1,
            )
            for i in range(total)
        ]
    if vendor == "GCU":
        return [
            card(vendor, f"{name}-GCU-{i}", i, count=1, mem=100, core=100)
            for i in range(number("enflame.com/gcu"))
        ]
    if vendor == "AWSNeuron":
        devices, cores = number("aws.amazon.com/neuron"), number("aws.amazon.com/neuroncore")
        labels = node["metadata"].get("labels") or {}
        each = cores // devices if devices else 0
        return [
            card(
                vendor,
                f"{name}-AWSNeuron-{i}",
                i,
                count=each,
                core=2**each - 1,
                info={"type": labels.get("node.kubernetes.io/instance-type", "")},
            )
            for i in range(devices)
        ]
    return []


def from_metax(text: str) -> list[Card]:
    """Sheet 1.8."""
    return [
        card(
            "Metax-SGPU",
            entry["uuid"],
            position,
            count=entry["totalDevCount"],
            mem=entry["totalVRam"],
            core=entry["totalCompute"],
            numa=entry.get("numa", 0),
            health=entry.get("healthy", False),
            info={"qos": entry.get("qosPolicy", ""), "zone": entry.get("linkZone", 0)},
        )
        for position, entry in enumerate(json.loads(text))
    ]


def from_enflame(node: Json, text: str) -> list[Card]:
    """Sheet 1.12."""
    capacity = json.loads(text)
    profiles = []
    for name in capacity["profiles"]:
        size, memory = name.split(".")
        profiles.append((int(size.removesuffix("g")), int(memory.removesuffix("gb"))))
    profiles.sort()
    return [
        card(
            "Enflame",
            f"{node['metadata']['name']}-enflame-drs-{device['index']}",
            int(device["index"]),
            count=int(device["capacity"]),
            mem=max(memory for _, memory in profiles) * 1024,
            core=100,
            info={"profiles": profiles, "largest": max(size for size, _ in profiles)},
        )
        for device in capacity["devices"]
    ]


def cards_of(node: Json, vendors: list[str]) -> list[Card]:
    """All cards of a node, vendor by vendor; nothing is used yet."""
    annotations = node["metadata"].get("annotations") or {}
    capacity = node["status"].get("capacity") or {}
    allocatable = node["status"].get("allocatable") or {}
    found: list[Card] = []
    for vendor in vendors:
        if vendor in REGISTER and REGISTER[vendor] in annotations:
            cards = from_json(vendor, annotations[REGISTER[vendor]])
        elif vendor in CSV_REGISTER and CSV_REGISTER[vendor] in annotations:
            cards = from_csv(vendor, annotations[CSV_REGISTER[vendor]])
        elif vendor == "Metax-SGPU" and "metax-tech.com/node-gpu-devices" in annotations:
            cards = from_metax(annotations["metax-tech.com/node-gpu-devices"])
        elif vendor == "Enflame" and "enflame.com/gcu-drs-capacity" in annotations:
            cards = from_enflame(node, annotations["enflame.com/gcu-drs-capacity"])
        else:
            cards = from_capacity(vendor, node)
        if vendor == "NVIDIA" and str(allocatable.get("nvidia.com/gpu")) == "0":
            cards = []
        if vendor == "AMD" and int(capacity.get("amd.com/gpu", 0)) == 0:
            cards = []
        found.extend(cards)
    closed = [entry.strip() for entry in annotations.get("hami.io/device-cordon", "").split(",")]
    for each in found:
        if each["vendor"] == "NVIDIA" and each["id"] in closed:
            each["cordoned"] = True
    return found


def pair_scores(node: Json) -> dict[str, dict[str, int]]:
    """Sheet 2.1.3."""
    text = (node["metadata"].get("annotations") or {}).get("hami.io/node-nvidia-score")
    return {entry["uuid"]: entry["score"] for entry in json.loads(text)} if text else {}
