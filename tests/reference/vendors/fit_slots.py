"""AMD, Enflame GCU, Biren and Vastai: fewer rules than the standard loop (protocol 1.2 to 1.15)."""

from collections import Counter
from typing import Any

from hamicommon.k8s.types import Json

from tests.reference.fit import Pick, Picks, Request, pick, short
from tests.reference.inventory import Card
from tests.reference.wishes import policies, type_allowed, uuid_allowed


def early(card: Card, annotations: Json) -> str:
    """Health, type, uuid, slots and mutex: what AMD, Vastai, Biren and others begin with."""
    if not card["health"]:
        return "CardNotHealth"
    if not type_allowed(card, annotations):
        return "CardTypeMismatch"
    if not uuid_allowed(card, annotations):
        return "CardUuidMismatch"
    if card["count"] <= card["used"]:
        return "CardTimeSlicingExhausted"
    if "mutex" in policies(annotations) and card["used"] > 0:
        return "ExclusiveDeviceAllocateConflict"
    return ""


def amd(cards: list[Card], request: Request, annotations: Json, earlier: list[Pick]) -> Picks:
    """Sheet 1.2: cores are compute units of the card."""
    reasons: Counter[str] = Counter()
    picks: list[Pick] = []
    for card in reversed(cards):
        memory = request["memory"] if request["memory"] > 0 else card["mem"]
        units = max(1, min(card["core"] * request["cores"] // 100, card["core"]))
        why = early(card, annotations)
        if not why and card["mem"] - card["used_mem"] < memory:
            why = "CardInsufficientMemory"
        if not why and (card["core"] <= 0 or card["core"] - card["used_core"] < units):
            why = "CardInsufficientCore"
        if why:
            reasons[why] += 1
            continue
        picks.append(pick(card, memory, units))
        if len(picks) == request["count"]:
            return picks, ""
    return short(picks, reasons, len(cards))


def gcu(cards: list[Card], request: Request, annotations: Json, earlier: list[Pick]) -> Picks:
    """Sheet 1.11: whole cards."""
    reasons: Counter[str] = Counter()
    picks: list[Pick] = []
    for card in reversed(cards):
        if not card["health"]:
            reasons["CardNotHealth"] += 1
        elif card["used"] > 0:
            reasons["ExclusiveDeviceAllocateConflict"] += 1
        else:
            picks.append(pick(card, 100, 100))
            if len(picks) == request["count"]:
                return picks, ""
    return short(picks, reasons, len(cards))


def biren(cards: list[Card], request: Request, annotations: Json, earlier: list[Pick]) -> Picks:
    """Sheet 1.15."""
    return first_of(cards, request, annotations)


def first_of(cards: list[Card], request: Request, annotations: Json) -> Picks:
    """The first cards that pass the early rules; nothing of them is counted but the slot."""
    reasons: Counter[str] = Counter()
    picks: list[Pick] = []
    for card in reversed(cards):
        why = early(card, annotations)
        if why:
            reasons[why] += 1
            continue
        picks.append(pick(card, 0, 0))
        if len(picks) == request["count"]:
            return picks, ""
    return short(picks, reasons, len(cards))


def vastai(cards: list[Card], request: Request, annotations: Json, earlier: list[Pick]) -> Picks:
    """Choose dies of one board together (sheet 1.14)."""
    if not die_mode(cards):
        return first_of(cards, request, annotations)
    count = request["count"]
    busy = {card["info"].get("AIC") for card in cards if card["used"] > 0}
    reasons: Counter[str] = Counter()
    picks: list[Pick] = []
    for card in reversed(cards):
        why = early(card, annotations)
        if not why and "mutex" in policies(annotations) and card["info"].get("AIC") in busy:
            why = "ExclusiveDeviceAllocateConflict"
        if why:
            reasons[why] += 1
        else:
            picks.append(pick(card, 0, 0))
    if len(picks) < count:
        return short(picks, reasons, len(cards))
    if len(picks) == count or count == 1:
        return picks[:count], ""
    return from_largest_groups(picks, count, "AIC"), ""


def die_mode(cards: list[Card]) -> bool:
    """By the first card as listed."""
    first = min(cards, key=lambda c: c["index"])
    return bool(first["info"].get("DeviceStrategy") == "die")


def from_largest_groups(picks: list[Pick], count: int, key: str) -> list[Pick]:
    """Fills from the groups with most picks first; equal ones in the order in which they came."""
    groups: dict[Any, list[Pick]] = {}
    for each in picks:
        groups.setdefault(each["card"]["info"].get(key), []).append(each)
    ordered = sorted(groups.values(), key=len, reverse=True)
    return [each for group in ordered for each in group][:count]
