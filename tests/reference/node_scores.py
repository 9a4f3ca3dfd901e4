"""How preferable a node is (protocol 4.6 a and f)."""

import json
from collections import Counter

import numpy as np
from hamicommon.k8s.types import Json

from tests.reference.fit import Pick
from tests.reference.inventory import Card

Slots = list[tuple[str, list[Pick]]]


def node_score(cards: list[Card]) -> np.float32:
    """How used the node is, over all cards of all vendors."""
    total = np.float32(0)
    for used, capacity in (("used", "count"), ("used_core", "core"), ("used_mem", "mem")):
        whole = sum(card[capacity] for card in cards)
        if whole == 0:
            return np.float32(0)
        total += np.float32(sum(card[used] for card in cards)) / np.float32(whole)
    return np.float32(10) * total


def vendor_score(node: Json, cards: list[Card], slots: Slots, annotations: Json) -> float:
    """Return the vendors' addition for this placement; `cards` are as they were before it."""
    total = 0.0
    vendors = {each["card"]["vendor"] for _, picks in slots for each in picks}
    policy = annotations.get("hami.io/node-scheduler-policy", "").strip() or "binpack"
    for vendor in vendors:
        containers = [
            [each for each in picks if each["card"]["vendor"] == vendor] for _, picks in slots
        ]
        containers = [picks for picks in containers if picks]
        mine = [card for card in cards if card["vendor"] == vendor]
        if vendor == "Metax-GPU":
            total += metax_gpu(node, containers, policy)
        elif vendor == "Metax-SGPU":
            sign = -1 if policy == "spread" else 1
            total += sign * 10000 * metax_sgpu(mine, containers, annotations)
        elif vendor == "kunlun":
            total += kunlun(cards, containers)
        elif vendor == "Vastai" and mine[0]["info"].get("DeviceStrategy") == "die":
            total += same_group(containers, "AIC")
        elif vendor.startswith("Ascend910"):
            total += 10 * same_group(containers, "NetworkID")
    return total


def same_group(containers: list[list[Pick]], key: str) -> float:
    """Per container, the share of its cards in its largest group."""
    total = 0.0
    for picks in containers:
        if any(key not in each["card"]["info"] for each in picks):
            return 0.0
        groups = Counter(each["card"]["info"][key] for each in picks)
        total += max(groups.values()) / len(picks)
    return total


def metax_gpu(node: Json, containers: list[list[Pick]], policy: str) -> float:
    """Sheet 1.7."""
    number = sum(len(picks) for picks in containers)
    key = "scores" if policy == "spread" else "losses"
    text = (node["metadata"].get("annotations") or {}).get(f"metax-tech.com/gpu.topology.{key}")
    return 0.0 if text is None else 2000.0 - json.loads(text).get(str(number), 0)


def metax_sgpu(cards: list[Card], containers: list[list[Pick]], annotations: Json) -> float:
    """Sheet 1.8, with the configuration's topology switch off."""
    picks = [each for container in containers for each in container]
    total = 0.0
    if annotations.get("metax-tech.com/sgpu-app-class") == "online":
        before = {card["id"]: card["classes"] for card in cards}
        for each in picks:
            classes = before[each["card"]["id"]]
            online, offline = classes.count("online"), classes.count("offline")
            total += -100 * offline if offline and not online else -20 * online - 2 * offline
        return total
    aware = annotations.get("metax-tech.com/sgpu-topology-aware") == "true"
    if not aware or not any(each["core"] == 100 for each in picks):
        return 0.0
    chosen = {each["card"]["id"] for each in picks}
    idle = [card for card in cards if card["used"] == 0]
    allocated = zone_score([card for card in cards if card["id"] in chosen])
    available = zone_score(idle)
    rest = zone_score([card for card in idle if card["id"] not in chosen])
    return 10 * allocated - (available - allocated - rest)


def zone_score(cards: list[Card]) -> float:
    """Ten per pair of cards in one zone."""
    zones = Counter(card["info"]["zone"] for card in cards if card["info"]["zone"] > 0)
    return 10.0 * sum(n * (n - 1) // 2 for n in zones.values())


def kunlun(cards: list[Card], containers: list[list[Pick]]) -> float:
    """Sheet 1.9: how many half-used wings the placement makes."""
    if any(card["vendor"] != "kunlun" for card in cards):
        return 0.0
    before = {card["index"] for card in cards if card["used"] > 0}
    after = {each["card"]["index"] for picks in containers for each in picks}
    delta = bubbles(after) - bubbles(before)
    return {-1: 3000.0, 0: 2000.0, 1: 1000.0, 2: 0.0}.get(delta, 1000.0)


def bubbles(used: set[int]) -> int:
    """By wing: none or all used 0, one used 2, else 1; 1 when both wings are empty."""
    left, right = sum(index < 4 for index in used), sum(index >= 4 for index in used)
    if left == right == 0:
        return 1
    return sum({4: 0, 1: 2}.get(number, 1) for number in (left, right))
