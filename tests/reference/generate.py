"""Random clusters and pods in the form of `hamictl simulate --jsonl`.

`case` draws from any `random.Random`: a seeded one for the many, hypothesis' own for shrinking.
Amounts are chosen so that about half of the nodes fit: small sets of values that meet each other.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.reference.fit import uuid_keys
from tests.reference.inventory import ALLOCATED, cards_of
from tests.reference.requests import ASCEND, ILUVATAR

Json = dict[str, Any]

NVIDIA_TYPES = ["NVIDIA A100-SXM4-40GB", "NVIDIA A10", "NVIDIA H100-PCIE-80GB", "NVIDIA"]
MIG_PROFILES = [
    ("1g.5gb", 5120, 14, 1, [(start, 1) for start in range(7)]),
    ("2g.10gb", 10240, 28, 2, [(0, 2), (2, 2), (4, 2)]),
    ("3g.20gb", 20480, 42, 4, [(0, 4), (4, 4)]),
    ("7g.40gb", 40960, 100, 8, [(0, 8)]),
]
MIG_SHARE = 0.15
"""Of the NVIDIA cards."""
GPU_POLICIES = ["binpack", "spread", "mutex", "numa", "topology-aware", "odd"]


def flip(r: Random, chance: float) -> bool:
    """True with the given probability."""
    return r.random() < chance


def case(r: Random, words: list[str]) -> Json:
    """A cluster of one to four nodes with cards of one to three vendors, and a pod."""
    main = r.choice(words)
    mixed = [main]
    if flip(r, 0.25):
        mixed += [word for word in r.sample(words, min(2, len(words))) if word != main]
    nodes = [node(r, f"n{number}", mixed) for number in range(r.randint(1, 4))]
    pods = [
        pod
        for each in nodes
        for pod in (placed(r, each, number) for number in range(r.randint(0, 4)))
        if pod is not None
    ]
    if pods and flip(r, 0.1):
        r.choice(pods)["status"]["phase"] = r.choice(["Succeeded", "Failed", "Pending"])
    return {"name": "case", "in": {"nodes": nodes, "pods": pods, "pod": asking(r, nodes, mixed)}}


# --- nodes ----------------------------------------------------------------------------------------


def node(r: Random, name: str, words: list[str]) -> Json:
    """A node with the cards of some of the vendors."""
    found: Json = {
        "kind": "Node",
        "metadata": {"name": name, "annotations": {}, "labels": {}},
        "status": {"capacity": {}, "allocatable": {}},
    }
    for word in words:
        if flip(r, 0.9):
            add_cards(r, found, word)
    found["status"]["allocatable"] |= found["status"]["capacity"]
    return found


def add_cards(r: Random, into: Json, word: str) -> None:
    """Cards of one vendor, told as that vendor tells them."""
    name, annotations = into["metadata"]["name"], into["metadata"]["annotations"]
    capacity = into["status"]["capacity"]
    number = r.choice([1, 2, 2, 4, 8])
    if word == "NVIDIA":
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
    elif word in ("DCU", *ILUVATAR):
        key = "hami.io/node-dcu-register" if word == "DCU" else f"hami.io/node-{word}-register"
        kind = "DCU-Z100L" if word == "DCU" else word
        annotations[key] = "".join(
            f"{word}-{name}-{index},{r.choice([1, 4, 100])},{r.choice([16384, 32768])},100,"
            f"{kind},{r.randint(0, 1)},{'false' if flip(r, 0.1) else 'true'}:"
            for index in range(number)
        )
    elif word in ("AMD", "XPU", "Vastai", "Biren", *ASCEND):
        add_registered(r, into, word, 8 if word == "XPU" else number)
    elif word == "Metax-SGPU":
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
    elif word == "Enflame":
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
        add_capacity(r, into, word, number)


def nvidia_card(r: Random, name: str, index: int) -> Json:
    """A card as the plugin registers it: what is zero is left out."""
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


def add_registered(r: Random, into: Json, word: str, number: int) -> None:
    """Vendors with NVIDIA's JSON form."""
    name = into["metadata"]["name"]
    shapes: dict[str, Json] = {
        "AMD": {"count": 4, "devmem": 196608, "devcore": 304, "type": "AMD Instinct MI300X"},
        "XPU": {"count": 4, "devmem": 98304, "devcore": 100, "type": "XPU-P800"},
        "Vastai": {"count": 1, "devmem": 32768, "devcore": 100, "type": "Vastai"},
        "Biren": {"count": r.choice([1, 2]), "devmem": 32768, "devcore": 100, "type": "Biren"},
    }
    ascend = {"count": 7, "devmem": 65536, "devcore": r.choice([20, 30]), "type": word}
    shape = shapes.get(word, ascend)
    die, networks = flip(r, 0.6), flip(r, 0.8)
    cards = []
    for index in range(number):
        card: Json = {"id": f"{word}-{name}-{index}", "index": index, "health": not flip(r, 0.08)}
        card |= shape | {"numa": r.randint(0, 1)}
        if word == "Vastai" and die:
            card["custominfo"] = {"AIC": str(index // 2), "DeviceStrategy": "die"}
        if word in ASCEND and networks:
            card["custominfo"] = {"NetworkID": index // 2 if flip(r, 0.7) else 0}
        cards.append({key: value for key, value in card.items() if value})
    keys = {
        "AMD": "hami.io/node-amd-register",
        "XPU": "hami.io/node-register-xpu",
        "Vastai": "hami.io/node-va-register",
        "Biren": "hami.io/node-biren-register",
    }
    into["metadata"]["annotations"][keys.get(word, f"hami.io/node-register-{word}")] = json.dumps(
        cards
    )
    if word == "AMD":
        into["status"]["capacity"]["amd.com/gpu"] = str(4 * number)
    if word in ASCEND and flip(r, 0.5):
        into["metadata"]["annotations"]["hami-vnpu-core"] = r.choice(["true", "false"])


def add_capacity(r: Random, into: Json, word: str, number: int) -> None:
    """Vendors of which only the kubelet knows."""
    capacity, annotations = into["status"]["capacity"], into["metadata"]["annotations"]
    if word == "MLU":
        capacity["cambricon.com/vmlu"] = str(number)
        capacity["cambricon.com/mlu.smlu.vmemory"] = str(number * r.choice([64, 192]))
        capacity["cambricon.com/mlu.smlu.vcore"] = str(number * 100)
    elif word == "Mthreads":
        capacity["mthreads.com/vgpu"] = str(100 * number)
        capacity["mthreads.com/sgpu-memory"] = str(96 * number)
        capacity["mthreads.com/sgpu-core"] = str(16 * number)
    elif word == "Metax-GPU":
        capacity["metax-tech.com/gpu"] = str(number)
        for key in ("losses", "scores"):
            if flip(r, 0.5):
                told = {str(n): r.choice([0, 50, 100, 500]) for n in (1, 2, 4) if flip(r, 0.8)}
                annotations[f"metax-tech.com/gpu.topology.{key}"] = json.dumps(told)
    elif word == "kunlun":
        capacity["kunlunxin.com/xpu"] = "8"
    elif word == "GCU":
        capacity["enflame.com/gcu"] = str(number)
    elif word == "AWSNeuron":
        number = r.choice([4, 8, 16])
        capacity["aws.amazon.com/neuron"] = str(number)
        capacity["aws.amazon.com/neuroncore"] = str(2 * number)
        kind = r.choice(["inf2.xlarge", "trn1.2xlarge", ""])
        if kind:
            into["metadata"]["labels"]["node.kubernetes.io/instance-type"] = kind


# --- placed pods ----------------------------------------------------------------------------------


def ids_of(given: Json) -> dict[str, list[str]]:
    """The ids of the node's cards by vendor word, read from what the node tells."""
    found: dict[str, list[str]] = {}
    for each in cards_of(given, list(ALLOCATED)):
        found.setdefault(each["word"], []).append(each["id"])
    return found


def placed(r: Random, on: Json, number: int) -> Json | None:
    """A pod that holds slices of the node; None when the node has no card."""
    ids = ids_of(on)
    if not ids:
        return None
    word = r.choice(sorted(ids))
    inits, apps = r.choice([(0, 1), (0, 1), (0, 2), (1, 1), (1, 2)])
    pieces, reservations = [], []
    for container in range(inits + apps):
        slices = []
        many = r.choice([0, 1, 1, 2]) if len(ids[word]) > 1 else 1
        for position, identity in enumerate(r.sample(ids[word], many)):
            memory, cores, extra = slice_of(r, on, word, identity)
            slices.append(f"{identity},{word},{memory},{cores}:")
            if extra:
                reservations.append(
                    {
                        "containerIndex": container,
                        "deviceIndex": position,
                        "gpuUUID": identity,
                        **extra,
                    }
                )
        pieces.append("".join(slices) + ";")
    annotations = {
        "hami.io/vgpu-node": on["metadata"]["name"],
        ALLOCATED[word]: "".join(pieces) + ";" * r.choice([0, 0, 1]),
    }
    if reservations and flip(r, 0.9):
        annotations["hami.io/vgpu-mig-allocations"] = json.dumps(reservations)
    if word == "Metax-SGPU" and flip(r, 0.5):
        annotations["metax-tech.com/sgpu-app-class"] = r.choice(["online", "offline"])
    if word == "Metax-SGPU" and flip(r, 0.5):
        annotations["metax-tech.com/sgpu-qos-policy"] = r.choice(["best-effort", "fixed-share"])
    return {
        "kind": "Pod",
        "metadata": {
            "name": f"old-{on['metadata']['name']}-{number}",
            "namespace": "default",
            "annotations": annotations,
        },
        "spec": {
            "initContainers": [{"name": f"i{n}"} for n in range(inits)],
            "containers": [{"name": f"c{n}"} for n in range(apps)],
        },
        "status": {"phase": "Running"},
    }


def slice_of(r: Random, on: Json, word: str, identity: str) -> tuple[int, int, Json]:
    """Memory and cores of a slice, and its MIG reservation where it needs one."""
    if word == "NVIDIA":
        register = json.loads(on["metadata"]["annotations"]["hami.io/node-nvidia-register"])
        card = next(card for card in register if card["id"] == identity)
        if card.get("mode") == "mig":
            name, memory, core, _, places = r.choice(MIG_PROFILES[:3])
            start, size = r.choice(places)
            return memory, core, {"profile": name, "placement": {"start": start, "size": size}}
        return r.choice([500, 1000, 4000]), r.choice([0, 10, 30, 50, 100]), {}
    if word == "AWSNeuron":
        return 0, r.choice([1, 2, 3]), {}
    if word in ("Vastai", "Biren"):
        return 0, 0, {}
    if word == "GCU":
        return 100, 100, {}
    if word == "XPU":
        memory = r.choice([24576, 24576, 49152, 98304])
        return memory, memory * 100 // 98304, {}
    if word == "kunlun":
        return 98304, 100, {}
    if word == "Enflame":
        size, memory = r.choice([(1, 8192), (2, 16384), (3, 24576)])
        return memory, -(-size * 100 // 6), {}
    if word == "AMD":
        return r.choice([20000, 98304]), r.choice([76, 152, 304]), {}
    if word == "Mthreads":
        return r.choice([1024, 16384]), r.choice([1, 4, 16]), {}
    if word == "Metax-GPU":
        return 65536, 100, {}
    return r.choice([2000, 8192, 16384]), r.choice([0, 10, 50, 100]), {}


# --- the pod --------------------------------------------------------------------------------------

RESOURCES: dict[str, tuple[str, str, list[Any], str, list[Any]]] = {
    "NVIDIA": (
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        [500, 1000, 5000, 10000, 20000],
        "nvidia.com/gpucores",
        [0, 10, 30, 50, 100, 150],
    ),
    "MLU": (
        "cambricon.com/vmlu",
        "cambricon.com/mlu.smlu.vmemory",
        [4, 16, 64],
        "cambricon.com/mlu.smlu.vcore",
        [0, 10, 50, 100],
    ),
    "DCU": (
        "hygon.com/dcunum",
        "hygon.com/dcumem",
        [1000, 9000],
        "hygon.com/dcucores",
        [0, 30, 60],
    ),
    "GCU": ("enflame.com/gcu", "", [], "", []),
    "Mthreads": (
        "mthreads.com/vgpu",
        "mthreads.com/sgpu-memory",
        [2, 16, 64, 96],
        "mthreads.com/sgpu-core",
        [1, 4, 16],
    ),
    "Metax-GPU": ("metax-tech.com/gpu", "", [], "", []),
    "Metax-SGPU": (
        "metax-tech.com/sgpu",
        "metax-tech.com/vmemory",
        [1, 8, "4096Mi", "16Gi"],
        "metax-tech.com/vcore",
        [10, 60, 100],
    ),
    "kunlun": ("kunlunxin.com/xpu", "", [], "", []),
    "XPU": ("kunlunxin.com/vxpu", "kunlunxin.com/vxpu-memory", [24576, 49152, 98304], "", []),
    "AWSNeuron": ("aws.amazon.com/neuron", "", [], "", []),
    "AMD": (
        "amd.com/gpu",
        "amd.com/gpumem",
        [20000, 98304],
        "amd.com/gpucores",
        [1, 25, 50, 100],
    ),
    "Vastai": ("vastaitech.com/va", "", [], "", []),
    "Biren": ("birentech.com/gpu", "", [], "", []),
    **{
        word: (f"huawei.com/{word}", f"huawei.com/{word}-memory", [2000, 16384, 65536], "", [])
        for word in ASCEND
    },
    **{
        word: (
            f"iluvatar.ai/{word}-vgpu",
            f"iluvatar.ai/{word}.vMem",
            [8, 64],
            f"iluvatar.ai/{word}.vCore",
            [10, 50, 100, 200],
        )
        for word in ILUVATAR
    },
}
"""Count, memory and core resource with the amounts that are asked for."""


def limits(r: Random, word: str) -> Json:
    """What one container asks of one vendor."""
    if word == "Enflame":
        if flip(r, 0.7):
            return {"enflame.com/drs-gcu": r.choice([1, 2, 3, 4, 6])}
        return {
            "enflame.com/gcu-memory": r.choice([4, 12, 20, 12000]),
            "enflame.com/gcu-core": r.choice([10, 30, 60]),
        }
    if word == "AWSNeuron" and flip(r, 0.5):
        return {"aws.amazon.com/neuroncore": r.choice([1, 2, 4, 8])}
    count, memory, amounts, cores, shares = RESOURCES[word]
    found: Json = {count: r.choice([1, 1, 1, 2, 2, 3, 4, 8])}
    if memory and flip(r, 0.7):
        found[memory] = r.choice(amounts)
    if cores and flip(r, 0.6):
        found[cores] = r.choice(shares)
    if word == "NVIDIA" and flip(r, 0.25):
        found["nvidia.com/gpumem-percentage"] = r.choice([0, 1, 10, 33, 50, 100, 101, 150])
    return {key: str(value) for key, value in found.items()}


def asking(r: Random, nodes: list[Json], words: list[str]) -> Json:
    """A pod of one to three containers, now and then with init containers and sidecars."""

    def container(name: str) -> Json:
        asked: Json = {}
        if flip(r, 0.85):
            for word in r.sample(words, r.choice([1, 1, 1, len(words)])):
                asked |= limits(r, word)
        return {"name": name, "image": "x", "resources": {"limits": asked}}

    spec: Json = {"containers": [container(f"c{n}") for n in range(r.choice([1, 1, 2, 3]))]}
    if flip(r, 0.25):
        spec["initContainers"] = [container(f"i{n}") for n in range(r.choice([1, 1, 2]))]
        if flip(r, 0.3):
            spec["initContainers"][0]["restartPolicy"] = "Always"
    annotations = wishes(r, nodes, words)
    if "topology-aware" in annotations.get("hami.io/gpu-scheduler-policy", ""):
        # All sets of MIG slices are compared: of eight cards' slices millions of sets.
        for each in [*spec["containers"], *spec.get("initContainers", [])]:
            asked = each["resources"]["limits"]
            if int(asked.get("nvidia.com/gpu", 0)) > 2:
                asked["nvidia.com/gpu"] = "2"
    return {
        "kind": "Pod",
        "metadata": {
            "name": "new",
            "namespace": "default",
            "uid": "uid",
            "annotations": annotations,
        },
        "spec": spec,
    }


def wishes(r: Random, nodes: list[Json], words: list[str]) -> Json:
    """Annotations of the pod: policies, weights and which cards it may have."""
    found: Json = {}
    if flip(r, 0.5):
        found["hami.io/node-scheduler-policy"] = r.choice(["binpack", "spread", "odd"])
    if flip(r, 0.6):
        chosen = r.sample(GPU_POLICIES, r.choice([1, 1, 2, 3]))
        found["hami.io/gpu-scheduler-policy"] = r.choice([",", ", "]).join(chosen)
        if flip(r, 0.05):
            found["hami.io/gpu-scheduler-policy"] += r.choice([",", " "])
    if flip(r, 0.2):
        found["hami.io/device-scoring-weights"] = r.choice(
            [
                "slot=1,core=1,memory=3",
                "memory=0, slot=5, core=0",
                "slot=0,core=3,memory=1",
                "slot=0,core=0,memory=0",
                "slot=1",
                "slot=1,core=-1,memory=1",
            ]
        )
    if "NVIDIA" in words:
        if flip(r, 0.15):
            found["nvidia.com/numa-bind"] = r.choice(["true", "1", "false", "maybe"])
        if flip(r, 0.15):
            found["nvidia.com/vgpu-mode"] = r.choice(["hami-core", "mig", "mig,mps"])
        if flip(r, 0.15):
            found["nvidia.com/use-gputype"] = r.choice(["A10", "a100,H100", "", ","])
        if flip(r, 0.1):
            found["nvidia.com/nouse-gputype"] = r.choice(["A100", "h100 ,", ""])
    for word in words:
        if uuid_keys(word) and flip(r, 0.15):
            use, avoid = r.choice(uuid_keys(word))
            ids = [identity for each in nodes for identity in ids_of(each).get(word, [])]
            if ids:
                key = r.choice([use, avoid])
                found[key] = r.choice([", ", ","]).join(r.sample(ids, min(len(ids), 3)))
    for word in words:
        if word in ASCEND and flip(r, 0.2):
            found["huawei.com/vnpu-mode"] = "hami-core"
    if "Metax-SGPU" in words:
        if flip(r, 0.4):
            found["metax-tech.com/sgpu-app-class"] = r.choice(["online", "offline"])
        if flip(r, 0.4):
            found["metax-tech.com/sgpu-qos-policy"] = r.choice(["best-effort", "fixed-share"])
        if flip(r, 0.3):
            found["metax-tech.com/sgpu-topology-aware"] = r.choice(["true", "false"])
    return found
