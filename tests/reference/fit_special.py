"""The vendors whose fit is not the standard loop (sheet 1.2 and 1.8 to 1.16)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.reference.fit import (
    Pick,
    Picks,
    Request,
    memory_on,
    pick,
    policies,
    short,
    standard,
    type_allowed,
    uuid_allowed,
)
from tests.reference.inventory import Card

Json = dict[str, Any]


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
    """Sheet 1.14: dies of one board together."""
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


# --- Kunlun ---------------------------------------------------------------------------------------

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


# --- Enflame DRS ----------------------------------------------------------------------------------


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


# --- AWS Neuron -----------------------------------------------------------------------------------


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


# --- Ascend ---------------------------------------------------------------------------------------


def ascend(
    cards: list[Card], request: Request, annotations: Json, earlier: list[Pick], node: Json
) -> Picks:
    """Sheet 1.16."""
    count, word, total = request["count"], request["word"], len(cards)
    soft = request["extra"]["soft"]
    supports = (node["metadata"].get("annotations") or {}).get("hami-vnpu-core", "") == "true"
    if soft and not supports:
        return [], f"1/{total} ModeNotFit"
    topology = word.startswith("Ascend910") and all("NetworkID" in c["info"] for c in cards)
    modules = word == "Ascend910C" and count > 1
    picks, reasons = standard(
        cards,
        request,
        annotations,
        collect=topology or modules,
        total_core=lambda card: 100 if soft else int(card["core"]),
    )
    if modules:
        chosen = whole_modules(picks, count)
        return (chosen, "") if len(chosen) == count else short(chosen, reasons, count)
    if len(picks) < count:
        return short(picks, reasons, total)
    if len(picks) == count or count == 1:
        return picks[:count], ""
    return from_largest_groups(picks, count, "NetworkID"), ""


def whole_modules(picks: list[Pick], count: int) -> list[Pick]:
    """910C: the two chips of a module are given together, so an odd number is never met."""
    modules: dict[int, list[Pick]] = {}
    for each in picks:
        modules.setdefault(each["card"]["index"] // 2, []).append(each)
    chosen: list[Pick] = []
    for module in modules.values():
        if len(module) == 2 and len(chosen) < count:
            chosen += module
    return chosen


# --- MetaX sGPU -----------------------------------------------------------------------------------


def metax_sgpu(
    cards: list[Card], request: Request, annotations: Json, earlier: list[Pick]
) -> Picks:
    """Sheet 1.8."""
    count, mine = request["count"], request["extra"]["class"]
    cores = min(request["cores"], 100)
    reasons: Counter[str] = Counter()
    picks: list[Pick] = []
    for card in reversed(cards):
        memory = memory_on(card, request)
        why = sgpu_why_not(card, request, annotations, memory, cores)
        if why:
            reasons[why] += 1
        else:
            given = 0 if mine == "online" else cores
            plain = cores == 100 or mine == "online"
            policy = "" if plain else request["extra"]["qos"]
            picks.append(pick(card, memory, given, **{"class": mine, "policy": policy}))
    if len(picks) < count:
        return short(picks, reasons, len(cards))
    if len(picks) == count:
        return picks, ""
    if mine == "online":
        return sorted(picks, key=online_order)[:count], ""
    if not mine and cores == 100:
        return by_zone(picks, count), ""
    return picks[:count], ""


def sgpu_why_not(card: Card, request: Request, annotations: Json, memory: int, cores: int) -> str:
    """The rules in MetaX' order."""
    mine, online = request["extra"]["class"], request["extra"]["class"] == "online"
    if not card["health"]:
        return "CardUnhealthy"
    if card["used"]:
        classed = any(card["classes"])
        if classed != bool(mine) or (mine == "offline" and "online" in card["classes"]):
            return "CardAppClassMismatch"
    other = any(policy not in ("", request["extra"]["qos"]) for policy in card["policies"])
    if not online and card["used"] and cores != 100 and other:
        return "CardQosPolicyMismatch"
    if not uuid_allowed(card, annotations):
        return "CardUuidMismatch"
    if card["count"] <= card["used"]:
        return "CardTimeSlicingExhausted"
    if "mutex" in policies(annotations) and card["used"] > 0:
        return "ExclusiveDeviceAllocateConflict"
    if card["mem"] - card["used_mem"] < memory:
        return "CardInsufficientMemory"
    if online:
        return ""
    if card["core"] - card["used_core"] < cores:
        return "CardInsufficientCore"
    if card["core"] == 100 and cores == 100 and card["used"] > 0:
        return "ExclusiveDeviceAllocateConflict"
    if card["core"] != 0 and card["used_core"] == card["core"] and cores == 0:
        return "CardComputeUnitsExhausted"
    return ""


def online_order(each: Pick) -> tuple[bool, int, int]:
    """Only-offline cards last; otherwise fewer online, then fewer offline."""
    classes = each["card"]["classes"]
    online, offline = classes.count("online"), classes.count("offline")
    return (offline > 0 and online == 0, online, offline)


def by_zone(picks: list[Pick], count: int) -> list[Pick]:
    """The smallest zone that is enough; else across zones from small to large; else without."""
    zones: dict[int, list[Pick]] = {}
    for each in picks:
        zones.setdefault(each["card"]["info"]["zone"], []).append(each)
    without = zones.pop(0, [])
    ordered = sorted(zones.values(), key=len)
    for zone in ordered:
        if len(zone) >= count:
            return zone[:count]
    return [*(each for zone in ordered for each in zone), *without][:count]
