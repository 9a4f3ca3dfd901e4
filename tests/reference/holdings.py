"""Holdings of placed pods on a node's cards (protocol 2.2, 4.4)."""

import json

from hamicommon.k8s.types import Json

from tests.reference.inventory import Card
from tests.reference.requests import ASCEND, ILUVATAR

ALLOCATED = {
    "NVIDIA": "hami.io/vgpu-devices-allocated",
    "MLU": "hami.io/cambricon-mlu-devices-allocated",
    "DCU": "hami.io/dcu-devices-allocated",
    "GCU": "hami.io/enflame-gcu-devices-allocated",
    "Enflame": "hami.io/enflame-vgpu-devices-allocated",
    "Mthreads": "hami.io/mthreads-vgpu-devices-allocated",
    "Metax-GPU": "hami.io/metax-gpu-devices-allocated",
    "Metax-SGPU": "hami.io/metax-sgpu-devices-allocated",
    "kunlun": "hami.io/kunlun-allocated",
    "XPU": "hami.io/xpu-devices-allocated",
    "AWSNeuron": "hami.io/aws-neuron-devices-allocated",
    "AMD": "hami.io/amd-devices-allocated",
    "Vastai": "hami.io/Vastai-devices-allocated",
    "Biren": "hami.io/Biren-devices-allocated",
    **{chip: f"hami.io/{chip}-devices-allocated" for chip in (*ASCEND, *ILUVATAR)},
}


def decode(text: str) -> list[list[tuple[str, int, int]]]:
    """Sheet 2.2: per container, (id, memory, cores) of every slice."""
    found = []
    for piece in text.split(";"):
        slices = []
        for entry in piece.split(":"):
            if "," in entry:
                identity, _, memory, cores = entry.split(",")[:4]
                slices.append((identity, int(memory), int(cores)))
        found.append(slices)
    return found


def put_pods(name: str, cards: list[Card], pods: list[Json], asking: str = "") -> None:
    """Adds what the pods hold to the cards of node `name` (protocol 4.4).

    Not what the pod with the uid `asking` holds, which is to be placed again (protocol 4.5).
    """
    for pod in pods:
        if asking and pod["metadata"].get("uid") == asking:
            continue
        annotations = pod["metadata"].get("annotations") or {}
        if annotations.get("hami.io/vgpu-node") != name:
            continue
        if (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
            continue
        reservations = json.loads(annotations.get("hami.io/vgpu-mig-allocations") or "[]")
        roles = [
            "sidecar" if each.get("restartPolicy") == "Always" else "init"
            for each in (pod.get("spec") or {}).get("initContainers") or []
        ]
        for vendor, key in ALLOCATED.items():
            if key in annotations:
                containers = decode(annotations[key])
                if init_is_through(pod):
                    over = {place for place, role in enumerate(roles) if role == "init"}
                    containers = [[] if n in over else c for n, c in enumerate(containers)]
                put(vendor, effective(containers, roles), cards, reservations)
                if vendor == "Metax-SGPU":
                    remember(containers, cards, annotations)
        put_left_over(cards, reservations)


def init_is_through(pod: Json) -> bool:
    """Whether the pod's status reports exit code 0 of every init container but sidecars."""
    sidecars = [c["name"] for c in pod["spec"]["initContainers"] if "restartPolicy" in c]
    statuses = pod["status"].get("initContainerStatuses", [])
    ends = [
        status["state"].get("terminated", {}).get("exitCode")
        for status in statuses
        if status["name"] not in sidecars
    ]
    return ends != [] and all(end == 0 for end in ends)


def effective(
    containers: list[list[tuple[str, int, int]]], roles: list[str]
) -> dict[str, list[int]]:
    """Per card [slots, memory, cores]: the most at any moment of the pod's life.

    `roles` are those of the containers before the app containers.
    """
    found: dict[str, list[int]] = {}
    for position in range(len(containers)):
        if position < len(roles) and roles[position] == "init":
            moment = [n for n in range(position) if roles[n] == "sidecar"] + [position]
        else:
            moment = [n for n in range(len(containers)) if roles[n : n + 1] != ["init"]]
        now: dict[str, list[int]] = {}
        for identity, memory, cores in (each for n in moment for each in containers[n]):
            slots, before, share = now.get(identity, [0, 0, 0])
            now[identity] = [slots + 1, before + memory, share + cores]
        for identity, held in now.items():
            found[identity] = [
                max(pair) for pair in zip(held, found.get(identity, held), strict=True)
            ]
    return {identity: found[identity] for identity in sorted(found)}


def put(
    vendor: str,
    held: dict[str, list[int]],
    cards: list[Card],
    reservations: list[Json],
) -> None:
    """Adds one vendor's part of one pod."""
    for each in cards:
        if each["vendor"] != vendor or each["id"] not in held:
            continue
        slots, memory, cores = held[each["id"]]
        each["used"] += slots
        each["used_mem"] += memory
        each["used_core"] += cores
        if vendor == "NVIDIA":
            mine = [r for r in reservations if r["gpuUUID"] == each["id"]]
            if mine and each["mode"] == "hami-core":
                each["health"] = False
            if not mine and each["mode"] == "mig":
                each["health"] = False
            if mine and each["mode"] == "mig":
                reservations.remove(mine[0])
                each["mig"].append((mine[0]["placement"]["start"], mine[0]["placement"]["size"]))


def remember(
    containers: list[list[tuple[str, int, int]]], cards: list[Card], annotations: Json
) -> None:
    """Class and QoS policy of every MetaX slice (HAMi: of every pod, until the node reports it)."""
    pod_class = annotations.get("metax-tech.com/sgpu-app-class", "")
    policy = annotations.get("metax-tech.com/sgpu-qos-policy", "")
    for slices in containers:
        for identity, _, cores in slices:
            for each in cards:
                if each["id"] == identity:
                    each["classes"].append(pod_class)
                    plain = cores == 100 or pod_class == "online"
                    each["policies"].append("" if plain else policy)


def put_left_over(cards: list[Card], reservations: list[Json]) -> None:
    """Reservations that no slice of the annotation stood for."""
    for reservation in reservations:
        named = [c for c in cards if c["vendor"] == "NVIDIA" and c["id"] == reservation["gpuUUID"]]
        if not named:
            for each in cards:
                if each["vendor"] == "NVIDIA" and each["mode"] == "mig":
                    each["health"] = False
        for each in named:
            if each["mode"] == "mig":
                place = reservation["placement"]
                each["mig"].append((place["start"], place["size"]))
            else:
                each["health"] = False
