"""Kunlun cards, whole and in equal parts: cards that are linked (protocol 1.9, 1.10)."""

from hamicommon.k8s.types import Json

from tests.reference.fit import Pick, Picks, Request, pick
from tests.reference.inventory import Card
from tests.reference.wishes import policies, uuid_allowed

INNER = {(a, b) for wing in ((0, 1, 2, 3), (4, 5, 6, 7)) for a in wing for b in wing if a < b}


INTER = [(0, 4), (1, 5), (2, 6), (3, 7)]


QUADS = [(0, 1, 4, 5), (2, 3, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7), (0, 3, 4, 7), (1, 2, 5, 6)]


def graph_select(cards: list[Card], free: list[bool], count: int) -> list[Card]:
    """Sheet 1.9; `free` by position in the sorted list. Empty when nothing is found."""
    if count == 8:
        return cards[:8] if sum(free) >= 8 else []
    if count not in (1, 2, 4):
        return []
    left = [card for card, ok in zip(cards[:4], free[:4], strict=True) if ok]
    right = [card for card, ok in zip(cards[4:], free[4:], strict=True) if ok]
    if len(left) >= count or len(right) >= count:
        for slots in range(count, 5):
            number = [1, 3, 2, 4][slots - 1] if count % 2 else slots
            if len(left) == number:
                return left[:count]
            if len(right) == number:
                return right[:count]
    by_index = {card["index"]: card for card, ok in zip(cards, free, strict=True) if ok}
    if count == 2:
        for pair in INTER:
            if all(index in by_index for index in pair):
                return [by_index[index] for index in pair]
    if count == 4 and len(by_index) >= 4:
        return quad(by_index)
    return []


def quad(by_index: dict[int, Card]) -> list[Card]:
    """Four cards across the wings."""
    found: tuple[int, ...] = ()
    for indexes in QUADS:
        if not all(index in by_index for index in indexes):
            continue
        found = indexes
        if len(by_index) < 6:
            break
        rest = tuple(sorted(set(by_index) - set(indexes)))
        if rest in INNER or rest in INTER:
            break
    return [by_index[index] for index in found]


def kunlun(cards: list[Card], request: Request, annotations: Json, earlier: list[Pick]) -> Picks:
    """Sheet 1.9."""
    barred = sum(not uuid_allowed(card, annotations) for card in cards)
    free = [
        card["used"] == 0 and card["health"] and uuid_allowed(card, annotations) for card in cards
    ]
    chosen = graph_select(cards, free, request["count"])
    if not chosen:
        return (
            [],
            f"{barred}/{len(cards)} CardUuidMismatch" if barred else f"1/{len(cards)} NumaNotFit",
        )
    return [pick(card, card["mem"], card["core"]) for card in chosen], ""


def xpu(cards: list[Card], request: Request, annotations: Json, earlier: list[Pick]) -> Picks:
    """Sheet 1.10: slices of equal size share a card."""
    mutex = "mutex" in policies(annotations)
    barred = blocked = 0
    free = []
    for card in cards:
        fits = card["health"] and card["mem"] - card["used_mem"] >= request["memory"]
        if card["used"] > 0 and card["used_mem"] / card["used"] != request["memory"]:
            fits = False
        if mutex and card["used"] > 0:
            blocked += 1
            fits = False
        if not uuid_allowed(card, annotations):
            barred += 1
            fits = False
        free.append(fits)
    chosen = graph_select(cards, free, request["count"])
    if chosen:
        return [pick(card, request["memory"], request["cores"]) for card in chosen], ""
    if blocked:
        return [], f"{blocked}/{len(cards)} ExclusiveDeviceAllocateConflict"
    return [], f"{barred}/{len(cards)} CardUuidMismatch" if barred else f"1/{len(cards)} NumaNotFit"
