"""Slices of MetaX cards (protocol 1.8)."""

from collections import Counter

from hamicommon.k8s.types import Json

from tests.reference.fit import Pick, Picks, Request, memory_on, pick, short
from tests.reference.inventory import Card
from tests.reference.wishes import policies, uuid_allowed


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
