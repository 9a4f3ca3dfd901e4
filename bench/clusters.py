"""Clusters of one vendor's cards, some of them in use, as the benches of the engine meet them.

A cluster is kept as Kubernetes nodes with what is granted on their cards, so that the engine's view
and the reference model's cards are made from the same facts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName
from hamicommon.k8s.types import Json
from hamicommon.placement.cluster.view import CardState, ClusterView
from hamicommon.vendors.registry import Vendors

from tests.reference import inventory

Used = tuple[int, int, int]
"""Slots, MiB and cores."""

IDLE: Used = (0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Nodes of one vendor."""

    common_name: str
    cards: int
    """Per node."""
    publish: Callable[[Json, str, int], None]
    """Writes into a Node (its name, number of cards) what the vendor's plugin publishes of them."""
    use: Callable[[random.Random, int], list[Used]]
    """Amounts granted on each of a node's cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes, and per node what is granted on its cards."""

    common_name: str
    nodes: dict[NodeName, tuple[Json, list[Used]]]

    def view(self, vendors: Vendors) -> ClusterView:
        """Return the cluster as the engine sees it."""
        view, vendor = ClusterView(vendors.rules), vendors[self.common_name]
        for name, (node, used) in self.nodes.items():
            states = [
                CardState(
                    DeviceUsage(
                        device=device,
                        used_slots=slots,
                        used_memory_mib=memory,
                        used_core_percent=core,
                    ),
                    1,
                )
                for device, (slots, memory, core) in zip(
                    vendor.node_devices(node), used, strict=True
                )
            ]
            view.set_node(name, states)
        return view

    def model(self) -> dict[NodeName, tuple[Json, list[inventory.Card]]]:
        """Return the cluster as the reference model sees it."""
        found = {}
        for name, (node, used) in self.nodes.items():
            cards = inventory.cards_of(node, [self.common_name])
            for card, (slots, memory, core) in zip(cards, used, strict=True):
                card |= {"used": slots, "used_mem": memory, "used_core": core}
            found[name] = (node, cards)
        return found


def cluster(kind: Kind, nodes: int, seed: int) -> Cluster:
    """`nodes` nodes of that kind; the same seed gives the same cluster."""
    chance = random.Random(seed)
    found: dict[NodeName, tuple[Json, list[Used]]] = {}
    for number in range(nodes):
        name = f"node-{number:04}"
        node: Json = {
            "metadata": {"name": name, "annotations": {}, "labels": {}},
            "status": {"capacity": {}, "allocatable": {}},
        }
        kind.publish(node, name, kind.cards)
        node["status"]["allocatable"] |= node["status"]["capacity"]
        found[NodeName(name)] = (node, kind.use(chance, kind.cards))
    return Cluster(common_name=kind.common_name, nodes=found)


PODS_PER_NODE = 32
"""Pods on a node, of 8 GiB, 10 % of the cores and one of ten slots each: 40 % of all is granted."""


def _slices(chance: random.Random, cards: int) -> list[Used]:
    held = [0] * cards
    for _ in range(PODS_PER_NODE):
        held[chance.randrange(cards)] += 1
    return [(min(n, 10), min(n, 10) * 8192, min(n, 10) * 10) for n in held]


def _some(*choices: tuple[float, Used]) -> Callable[[random.Random, int], list[Used]]:
    """Each card is used in one of these ways, by weight; otherwise it is idle."""

    def use(chance: random.Random, cards: int) -> list[Used]:
        weights = [weight for weight, _ in choices]
        ways = [*(used for _, used in choices), IDLE]
        return chance.choices(ways, [*weights, 1 - sum(weights)], k=cards)

    return use


def _registered(
    key: str, common_name: str, *, info: Callable[[int], Json] = lambda index: {}, **fields: Any
) -> Callable[[Json, str, int], None]:
    """Cards in HAMi's JSON; `info` makes a card's `custominfo` from its index."""

    def publish(node: Json, name: str, cards: int) -> None:
        listed = [
            {"id": f"{common_name}-{name}-{index}", "index": index, "health": True, **fields}
            | {"numa": index * 2 // cards, "custominfo": info(index)}
            for index in range(cards)
        ]
        node["metadata"]["annotations"][key] = json.dumps(listed)
        node["status"]["capacity"]["nvidia.com/gpu"] = "80"

    return publish


def _neuron(node: Json, name: str, cards: int) -> None:
    node["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "trn1.32xlarge"
    node["status"]["capacity"] |= {
        "aws.amazon.com/neuron": str(cards),
        "aws.amazon.com/neuroncore": str(2 * cards),
    }


def _ascend(common_name: str, cards: int) -> Kind:
    return Kind(
        common_name=common_name,
        cards=cards,
        publish=_registered(
            f"hami.io/node-register-{common_name}",
            common_name,
            type=common_name,
            count=7,
            devmem=65536,
            devcore=20,
            info=lambda index: {"NetworkID": index // 4},
        ),
        use=_some((0.25, (1, 65536, 20)), (0.1, (1, 16384, 5)), (0.1, (2, 32768, 10))),
    )


def _kunlun(node: Json, name: str, cards: int) -> None:
    node["status"]["capacity"]["kunlunxin.com/xpu"] = str(cards)


KINDS = {
    "nvidia": Kind(
        common_name="NVIDIA",
        cards=8,
        publish=_registered(
            "hami.io/node-nvidia-register",
            "GPU",
            type="NVIDIA A100-SXM4-80GB",
            count=10,
            devmem=81920,
            devcore=100,
            mode="hami-core",
        ),
        use=_slices,
    ),
    "neuron": Kind(
        common_name="AWSNeuron",
        cards=16,
        publish=_neuron,
        use=_some((0.25, (2, 0, 3)), (0.15, (1, 0, 1)), (0.05, (1, 0, 2))),
    ),
    "910b3": _ascend("Ascend910B3", 8),
    "910c": _ascend("Ascend910C", 16),
    "kunlun": Kind(
        common_name="kunlun", cards=8, publish=_kunlun, use=_some((0.4, (1, 98304, 100)))
    ),
    "vxpu": Kind(
        common_name="XPU",
        cards=8,
        publish=_registered(
            "hami.io/node-register-xpu", "XPU", type="XPU-P800", count=4, devmem=98304, devcore=100
        ),
        use=_some((0.2, (1, 98304, 100)), (0.2, (1, 24576, 25)), (0.1, (2, 49152, 50))),
    ),
    "vastai": Kind(
        common_name="Vastai",
        cards=16,
        publish=_registered(
            "hami.io/node-va-register",
            "Vastai",
            type="Vastai",
            count=1,
            devmem=32768,
            devcore=100,
            info=lambda index: {"AIC": str(index // 4), "DeviceStrategy": "die"},
        ),
        use=_some((0.4, (1, 0, 0))),
    ),
}
