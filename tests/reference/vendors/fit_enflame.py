"""Slices of Enflame cards (protocol 1.12)."""

from collections import Counter

from hamicommon.k8s.types import Json

from tests.reference.fit import Pick, Picks, Request, pick, short
from tests.reference.inventory import Card
from tests.reference.vendors.fit_slots import early


def enflame(cards: list[Card], request: Request, annotations: Json, earlier: list[Pick]) -> Picks:
    """Sheet 1.12: one slice of a profile."""
    reasons: Counter[str] = Counter()
    for card in reversed(cards):
        profile = drs_profile(card, request["extra"])
        if profile is None:
            return [], f"1/{len(cards)} ModeNotFit"
        size, memory_gb = profile
        cores = -(-size * 100 // card["info"]["largest"])
        why = early(card, annotations)
        if not why and card["mem"] - card["used_mem"] < memory_gb * 1024:
            why = "CardInsufficientMemory"
        if not why and card["core"] - card["used_core"] < cores:
            why = "CardInsufficientCore"
        if why:
            reasons[why] += 1
            continue
        return [pick(card, memory_gb * 1024, cores, slots=size)], ""
    return short([], reasons, len(cards))


def drs_profile(card: Card, asked: Json) -> tuple[int, int] | None:
    """(size, GB) of the smallest profile that is enough."""
    profiles, largest = card["info"]["profiles"], card["info"]["largest"]
    if "size" in asked:
        exact = [each for each in profiles if each[0] == asked["size"]]
        return exact[0] if exact else None
    memory = asked["memory"]
    if memory > 2 * max(gb for _, gb in profiles):
        memory = -(-memory // 1024)
    for size, gb in profiles:
        if gb >= memory and -(-size * 100 // largest) >= asked["cores"]:
            return size, gb
    return None
