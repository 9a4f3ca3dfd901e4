"""The order in which a node's cards are tried (protocol 4.6)."""

from typing import Any

import numpy as np
from hamicommon.k8s.types import Json

from tests.reference.amounts import Malformed
from tests.reference.inventory import Card
from tests.reference.wishes import numa_bound, policies

Request = dict[str, Any]


def check_weights(annotations: Json) -> None:
    """Each of the three once, whole numbers, not all zero. Raises: Malformed."""
    text = annotations.get("hami.io/device-scoring-weights")
    if text is None:
        return
    parts = [entry.split("=") for entry in text.split(",")]
    names = sorted(part[0].strip() for part in parts)
    values = [part[1].strip() if len(part) == 2 else "" for part in parts]
    if names != ["core", "memory", "slot"] or not all(value.isdecimal() for value in values):
        raise Malformed(f"weights {text!r}")
    if not any(int(value) for value in values):
        raise Malformed(f"weights {text!r} are all zero")


def weights(annotations: Json) -> dict[str, int]:
    """`slot=1,core=1,memory=1` when not given."""
    text = annotations.get("hami.io/device-scoring-weights", "slot=1,core=1,memory=1")
    return {entry.split("=")[0].strip(): int(entry.split("=")[1]) for entry in text.split(",")}


def card_score(card: Card, requests: list[Request], weight: dict[str, int]) -> np.float32:
    """Higher is fuller; requests count only on cards whose type is just the vendor's name."""
    if not (card["count"] and card["core"] and card["mem"]):
        return np.float32(0)
    slots, core, mem = card["used"], card["used_core"], card["used_mem"]
    for request in requests:
        if request["vendor"] == card["type"]:
            slots += 1
            core += request["cores"]
            if request["percent"]:
                mem += card["mem"] * request["percent"] // 100
            else:
                mem += request["memory"]
    total = np.float32(0)
    total += np.float32(weight["slot"] * slots) / np.float32(card["count"])
    total += np.float32(weight["core"] * core) / np.float32(card["core"])
    total += np.float32(weight["memory"] * mem) / np.float32(card["mem"])
    return np.float32(10) * total


def sort_cards(cards: list[Card], requests: list[Request], annotations: Json) -> None:
    """Sorts in place; the LAST card is the most preferred. Equal cards keep their order (ours)."""
    weight = weights(annotations)
    for card in cards:
        card["score"] = card_score(card, requests, weight)
    names = policies(annotations)
    bound = numa_bound(annotations)
    if len(names) == 1 and names[0] != "numa":
        if names[0] == "mutex":
            cards.sort(key=lambda c: (-c["used"], c["numa"]))
        elif names[0] == "binpack" and bound:
            cards.sort(key=lambda c: (-c["numa"], c["score"]))
        elif names[0] == "binpack":
            cards.sort(key=lambda c: (c["score"], c["numa"]))
        elif bound:
            cards.sort(key=lambda c: (c["numa"], -c["score"]))
        else:
            cards.sort(key=lambda c: (-c["score"], c["numa"]))
        return
    chain = [name for name in names if name in ("binpack", "spread", "numa")] or ["spread"]
    if bound and chain[0] != "numa":
        chain = ["numa", *chain]

    def key(card: Card) -> tuple[Any, ...]:
        value = {"binpack": card["score"], "spread": -card["score"], "numa": card["numa"]}
        return (*(value[name] for name in chain), card["index"])

    cards.sort(key=key)
