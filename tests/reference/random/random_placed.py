"""Random pods that hold slices of a node's cards already."""

import json
from random import Random

from hamicommon.k8s.types import Json

from tests.reference.holdings import ALLOCATED
from tests.reference.inventory import cards_of
from tests.reference.random.random_nodes import MIG_PROFILES, flip


def ids_of(given: Json) -> dict[str, list[str]]:
    """The ids of the node's cards by vendor, read from the node's annotations and capacity."""
    found: dict[str, list[str]] = {}
    for each in cards_of(given, list(ALLOCATED)):
        found.setdefault(each["vendor"], []).append(each["id"])
    return found


def make_placed_pod(r: Random, on: Json, number: int) -> Json | None:
    """A pod that holds slices of the node; None when the node has no card."""
    ids = ids_of(on)
    if not ids:
        return None
    vendor = r.choice(sorted(ids))
    inits, apps = r.choice([(0, 1), (0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (3, 1)])
    first = [maybe_sidecar(r, f"i{n}") for n in range(inits)]
    pieces, reservations = [], []
    for container in range(inits + apps):
        slices = []
        many = r.choice([0, 1, 1, 2]) if len(ids[vendor]) > 1 else 1
        for position, identity in enumerate(r.sample(ids[vendor], many)):
            memory, cores, extra = slice_of(r, on, vendor, identity)
            slices.append(f"{identity},{vendor},{memory},{cores}:")
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
        ALLOCATED[vendor]: "".join(pieces) + ";" * r.choice([0, 0, 1]),
    }
    if reservations and flip(r, 0.9):
        annotations["hami.io/vgpu-mig-allocations"] = json.dumps(reservations)
    if vendor == "Metax-SGPU" and flip(r, 0.5):
        annotations["metax-tech.com/sgpu-app-class"] = r.choice(["online", "offline"])
    if vendor == "Metax-SGPU" and flip(r, 0.5):
        annotations["metax-tech.com/sgpu-qos-policy"] = r.choice(["best-effort", "fixed-share"])
    return {
        "kind": "Pod",
        "metadata": {
            "name": f"old-{on['metadata']['name']}-{number}",
            "namespace": "default",
            "annotations": annotations,
        },
        "spec": {
            "initContainers": first,
            "containers": [{"name": f"c{n}"} for n in range(apps)],
        },
        "status": {"phase": "Running"} | init_statuses(r, [each["name"] for each in first]),
    }


def maybe_sidecar(r: Random, name: str) -> Json:
    """An init container, in four of ten cases a sidecar."""
    return {"name": name} | ({"restartPolicy": "Always"} if flip(r, 0.4) else {})


def init_statuses(r: Random, inits: list[str]) -> Json:
    """Return the statuses of the pod's init containers: empty in half of the pods."""
    if not inits or flip(r, 0.5):
        return {}
    states = [{"terminated": {"exitCode": 0}}, {"terminated": {"exitCode": 1}}, {"running": {}}]
    state = r.choices(states, [8, 1, 1])[0]
    return {"initContainerStatuses": [{"name": name, "state": state} for name in inits]}


def slice_of(r: Random, on: Json, vendor: str, identity: str) -> tuple[int, int, Json]:
    """Memory and cores of a slice, and its MIG reservation where it needs one."""
    if vendor == "NVIDIA":
        register = json.loads(on["metadata"]["annotations"]["hami.io/node-nvidia-register"])
        card = next(card for card in register if card["id"] == identity)
        if card.get("mode") == "mig":
            name, memory, core, _, places = r.choice(MIG_PROFILES[:3])
            start, size = r.choice(places)
            return memory, core, {"profile": name, "placement": {"start": start, "size": size}}
        return r.choice([500, 1000, 4000]), r.choice([0, 10, 30, 50, 100]), {}
    if vendor == "AWSNeuron":
        return 0, r.choice([1, 2, 3]), {}
    if vendor in ("Vastai", "Biren"):
        return 0, 0, {}
    if vendor == "GCU":
        return 100, 100, {}
    if vendor == "XPU":
        memory = r.choice([24576, 24576, 49152, 98304])
        return memory, memory * 100 // 98304, {}
    if vendor == "kunlun":
        return 98304, 100, {}
    if vendor == "Enflame":
        size, memory = r.choice([(1, 8192), (2, 16384), (3, 24576)])
        return memory, -(-size * 100 // 6), {}
    if vendor == "AMD":
        return r.choice([20000, 98304]), r.choice([76, 152, 304]), {}
    if vendor == "Mthreads":
        return r.choice([1024, 16384]), r.choice([1, 4, 16]), {}
    if vendor == "Metax-GPU":
        return 65536, 100, {}
    return r.choice([2000, 8192, 16384]), r.choice([0, 10, 50, 100]), {}
