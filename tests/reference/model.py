"""The reference model: every node's answer to a pod, by plain loops over plain dicts.

Written only from the protocol, slow and obvious on purpose. Input and output are the cases and the
answers of `hamictl simulate --jsonl`; the engine must give the same. If HAMi breaks a tie at
random, the model uses the engine's documented keys: equal cards keep their order, of equal nodes
the first by name is chosen, vendors are asked in the order of registration.
"""

import copy
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from hamicommon.k8s.types import Json

from tests.reference import fit
from tests.reference.amounts import Malformed
from tests.reference.card_order import check_weights, sort_cards
from tests.reference.fit import Pick
from tests.reference.holdings import put_pods
from tests.reference.inventory import Card, cards_of, pair_scores
from tests.reference.node_scores import node_score, vendor_score
from tests.reference.requests import READERS, Request, requests_of
from tests.reference.vendors.fit_ascend import ascend
from tests.reference.vendors.fit_enflame import enflame
from tests.reference.vendors.fit_kunlun import kunlun, xpu
from tests.reference.vendors.fit_metax import metax_sgpu
from tests.reference.vendors.fit_neuron import neuron
from tests.reference.vendors.fit_nvidia import nvidia
from tests.reference.vendors.fit_slots import amd, biren, gcu, vastai

Slots = list[tuple[str, list[Pick]]]
"""Per container its role and picks."""


def answer(case: Json, vendors: list[str] | None = None) -> Json:
    """The answer to a case; `vendors` are those served (None: all)."""
    given, served = case["in"], list(READERS) if vendors is None else vendors
    names = [node["metadata"]["name"] for node in given["nodes"]]
    pod = given["pod"]
    annotations = pod["metadata"].get("annotations") or {}
    try:
        containers = [
            (role, [each for each in asked if each["vendor"] in served])
            for role, asked in requests_of(pod)
        ]
        if any(asked for _, asked in containers):
            check_weights(annotations)
    except Malformed as exc:
        failed = {name: {"fits": False, "error": str(exc)} for name in names}
        return {"nodes": failed, "chosen": None, "error": str(exc)}
    if not any(asked for _, asked in containers):
        passed = {name: {"fits": True, "unfiltered": True} for name in names}
        return {"nodes": passed, "chosen": "unfiltered", "error": ""}
    nodes: dict[str, Json] = {}
    scores: dict[str, float] = {}
    for node in given["nodes"]:
        name = node["metadata"]["name"]
        cards = cards_of(node, served)
        put_pods(name, cards, given["pods"], pod["metadata"].get("uid", ""))
        slots, reason = on_node(node, cards, containers, annotations)
        if reason:
            nodes[name] = {"fits": False, "reason": reason}
            continue
        nodes[name] = {"fits": True, "cards": write_slices(slots)}
        scores[name] = float(node_score(cards)) + vendor_score(node, cards, slots, annotations)
    return {"nodes": nodes, "chosen": choose(scores, annotations), "error": ""}


def choose(scores: Mapping[str, float], annotations: Json) -> str | None:
    """Spread: the lowest score; anything else: the highest; the first by name of equal ones."""
    if not scores:
        return None
    spread = annotations.get("hami.io/node-scheduler-policy", "").strip() == "spread"
    sign = 1 if spread else -1
    return min(scores, key=lambda name: (sign * np.float32(scores[name]), name))


def on_node(
    node: Json, cards: list[Card], containers: list[tuple[str, list[Request]]], annotations: Json
) -> tuple[Slots, str]:
    """Return every container's cards on one node, or why it does not fit (protocol 4.6)."""
    if not cards:
        return [], "node unregistered"
    running = copy.deepcopy(cards)
    slots: Slots = []
    for role, asked in containers:
        # Only the sidecars that started before it run beside an init container.
        mine = copy.deepcopy(running) if role == "init" else running
        got: list[Pick] = []
        for request in asked:
            sort_cards(mine, asked, annotations)
            earlier = earlier_picks(slots, request["vendor"])
            picks, reason = fit_one(node, mine, request, annotations, earlier)
            if not picks:
                return [], reason
            fit.take(picks)
            got.extend(picks)
        slots.append((role, got))
    return slots, ""


def earlier_picks(slots: Slots, vendor: str) -> list[Pick]:
    """Cards of one vendor granted to earlier containers that still run: all but init ones."""
    running = [each for role, picks in slots if role != "init" for each in picks]
    return [each for each in running if each["card"]["vendor"] == vendor]


def fit_one(
    node: Json, cards: list[Card], request: Request, annotations: Json, earlier: list[Pick]
) -> tuple[list[Pick], str]:
    """One request of one container."""
    vendor = request["vendor"]
    mine = [card for card in cards if card["vendor"] == vendor]
    mig = vendor == "NVIDIA" and any(card["mode"] == "mig" for card in mine)
    mode = annotations.get("nvidia.com/vgpu-mode", "")
    if request["count"] > len(mine) and not (mig and (not mode or "mig" in mode)):
        return [], "NodeInsufficientDevice"
    if vendor == "NVIDIA":
        return nvidia(mine, request, annotations, earlier, pair_scores(node))
    if vendor.startswith("Ascend"):
        return ascend(mine, request, annotations, earlier, node)
    special = {
        "AMD": amd,
        "GCU": gcu,
        "Biren": biren,
        "Vastai": vastai,
        "kunlun": kunlun,
        "XPU": xpu,
        "Enflame": enflame,
        "AWSNeuron": neuron,
        "Metax-SGPU": metax_sgpu,
        "Mthreads": fit.same_card,
        "Metax-GPU": fit.same_card,
    }
    return special.get(vendor, fit.plain)(mine, request, annotations, earlier)


def write_slices(slots: Slots) -> Json:
    """By vendor the slices of every container that has some; under `mig` the MIG reservations."""
    found: Json = {}
    for _, picks in slots:
        by_vendor: dict[str, list[list[Any]]] = {}
        for each in picks:
            card = each["card"]
            kind = card["type"] if card["vendor"] == "AMD" else card["vendor"]
            by_vendor.setdefault(card["vendor"], []).append(
                [card["id"], kind, each["mem"], each["core"]]
            )
        for vendor, slices in by_vendor.items():
            found.setdefault(vendor, []).append(slices)
    reservations = [
        {
            "containerIndex": container,
            "deviceIndex": device,
            "gpuUUID": each["card"]["id"],
            "profile": each["profile"],
            "placement": {"start": each["place"][0], "size": each["place"][1]},
        }
        for container, (_, picks) in enumerate(slots)
        for device, each in enumerate(p for p in picks if p["card"]["vendor"] == "NVIDIA")
        if "profile" in each
    ]
    if reservations:
        found["mig"] = reservations
    return found


def dumps(value: Json) -> str:
    """For the message of a failed comparison."""
    return json.dumps(value, indent=1, sort_keys=True)
