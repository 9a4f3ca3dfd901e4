"""Random pods to be placed: their requests, and the cards they may have."""

from random import Random
from typing import Any

from hamicommon.k8s.types import Json

from tests.reference.random.random_nodes import flip
from tests.reference.random.random_placed import ids_of
from tests.reference.requests import ASCEND, ILUVATAR
from tests.reference.wishes import uuid_keys

ASKING = "uid"
"""Uid of the pod to be placed."""
GPU_POLICIES = ["binpack", "spread", "mutex", "numa", "topology-aware", "odd"]


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
        chip: (f"huawei.com/{chip}", f"huawei.com/{chip}-memory", [2000, 16384, 65536], "", [])
        for chip in ASCEND
    },
    **{
        chip: (
            f"iluvatar.ai/{chip}-vgpu",
            f"iluvatar.ai/{chip}.vMem",
            [8, 64],
            f"iluvatar.ai/{chip}.vCore",
            [10, 50, 100, 200],
        )
        for chip in ILUVATAR
    },
}
"""Count, memory and core resource with the requested amounts."""


def limits(r: Random, vendor: str) -> Json:
    """Return one container's limits for one vendor."""
    if vendor == "Enflame":
        if flip(r, 0.7):
            return {"enflame.com/drs-gcu": r.choice([1, 2, 3, 4, 6])}
        return {
            "enflame.com/gcu-memory": r.choice([4, 12, 20, 12000]),
            "enflame.com/gcu-core": r.choice([10, 30, 60]),
        }
    if vendor == "AWSNeuron" and flip(r, 0.5):
        return {"aws.amazon.com/neuroncore": r.choice([1, 2, 4, 8])}
    count, memory, amounts, cores, shares = RESOURCES[vendor]
    found: Json = {count: r.choice([1, 1, 1, 2, 2, 3, 4, 8])}
    if memory and flip(r, 0.7):
        found[memory] = r.choice(amounts)
    if cores and flip(r, 0.6):
        found[cores] = r.choice(shares)
    if vendor == "NVIDIA" and flip(r, 0.25):
        found["nvidia.com/gpumem-percentage"] = r.choice([0, 1, 10, 33, 50, 100, 101, 150])
    return {key: str(value) for key, value in found.items()}


def asking(r: Random, nodes: list[Json], vendors: list[str]) -> Json:
    """A pod of one to three containers, now and then with init containers and sidecars."""

    def container(name: str) -> Json:
        asked: Json = {}
        if flip(r, 0.85):
            for vendor in r.sample(vendors, r.choice([1, 1, 1, len(vendors)])):
                asked |= limits(r, vendor)
        return {"name": name, "image": "x", "resources": {"limits": asked}}

    spec: Json = {"containers": [container(f"c{n}") for n in range(r.choice([1, 1, 2, 3]))]}
    if flip(r, 0.25):
        spec["initContainers"] = [container(f"i{n}") for n in range(r.choice([1, 2, 2, 3]))]
        for each in spec["initContainers"]:
            if flip(r, 0.4):
                each["restartPolicy"] = "Always"
    annotations = wishes(r, nodes, vendors)
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
            "uid": ASKING,
            "annotations": annotations,
        },
        "spec": spec,
    }


def wishes(r: Random, nodes: list[Json], vendors: list[str]) -> Json:
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
    if "NVIDIA" in vendors:
        if flip(r, 0.15):
            found["nvidia.com/numa-bind"] = r.choice(["true", "1", "false", "maybe"])
        if flip(r, 0.15):
            found["nvidia.com/vgpu-mode"] = r.choice(["hami-core", "mig", "mig,mps"])
        if flip(r, 0.15):
            found["nvidia.com/use-gputype"] = r.choice(["A10", "a100,H100", "", ","])
        if flip(r, 0.1):
            found["nvidia.com/nouse-gputype"] = r.choice(["A100", "h100 ,", ""])
    for vendor in vendors:
        if uuid_keys(vendor) and flip(r, 0.15):
            use, avoid = r.choice(uuid_keys(vendor))
            ids = [identity for each in nodes for identity in ids_of(each).get(vendor, [])]
            if ids:
                key = r.choice([use, avoid])
                found[key] = r.choice([", ", ","]).join(r.sample(ids, min(len(ids), 3)))
    for vendor in vendors:
        if vendor in ASCEND and flip(r, 0.2):
            found["huawei.com/vnpu-mode"] = "hami-core"
    if "Metax-SGPU" in vendors:
        if flip(r, 0.4):
            found["metax-tech.com/sgpu-app-class"] = r.choice(["online", "offline"])
        if flip(r, 0.4):
            found["metax-tech.com/sgpu-qos-policy"] = r.choice(["best-effort", "fixed-share"])
        if flip(r, 0.3):
            found["metax-tech.com/sgpu-topology-aware"] = r.choice(["true", "false"])
    return found
