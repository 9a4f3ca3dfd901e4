"""AWS Neuron devices side by side, or some cores of one (protocol 1.13)."""

from collections import Counter

from hamicommon.k8s.types import Json

from tests.reference.fit import Pick, Picks, Request, pick, short
from tests.reference.inventory import Card
from tests.reference.vendors.fit_slots import early


def neuron(cards: list[Card], request: Request, annotations: Json, earlier: list[Pick]) -> Picks:
    """Sheet 1.13: devices side by side, or some cores of one."""
    count = request["count"]
    if count > 1:
        ordered = sorted(cards, key=lambda c: c["index"])
        if "inf" in ordered[0]["info"]["type"] or "Inf" in ordered[0]["info"]["type"]:
            starts = list(range(len(ordered) - count + 1))
        else:
            starts = list(range(0, len(ordered) - count + 1, count)) if count in (4, 8, 16) else []
        for start in starts:
            window = ordered[start : start + count]
            if all(card["health"] and card["used"] == 0 for card in window):
                return [pick(card, 0, 2 ** request["cores"] - 1) for card in window], ""
        return [], f"1/{len(cards)} NumaNotFit"
    reasons: Counter[str] = Counter()
    for card in reversed(cards):
        why = early(card, annotations)
        free = bin(card["core"] & ~card["used_core"]).count("1")
        if not why and free < request["cores"]:
            why = "CardInsufficientCore"
        if why:
            reasons[why] += 1
            continue
        whole = 3 if request["cores"] == 2 else 1
        return [pick(card, 0, 3 - card["used_core"] if card["used_core"] else whole)], ""
    return short([], reasons, len(cards))
