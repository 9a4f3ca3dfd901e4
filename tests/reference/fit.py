"""Whether a container's request fits on a node, and on which cards: the standard loop (1.0.4).

A pick is a dict: `card`, `mem`, `core` as they are written on the pod, `slots`, and for MIG the
`profile` and `place`. Every fit returns (picks, "") or ([], HAMi's reason).
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from hamicommon.k8s.types import Json

from tests.reference.inventory import Card
from tests.reference.wishes import policies, type_allowed, uuid_allowed

Request = dict[str, Any]
Pick = dict[str, Any]
Picks = tuple[list[Pick], str]


def reason_text(reasons: Counter[str], total: int) -> str:
    """All reasons with the number of cards, sorted as text."""
    return ", ".join(sorted(f"{n}/{total} {reason}" for reason, n in reasons.items() if n))


def pick(card: Card, mem: int, core: int, **more: Any) -> Pick:
    """One slice."""
    return {"card": card, "mem": mem, "core": core, "slots": 1} | more


def take(picks: list[Pick]) -> None:
    """Puts the slices on their cards (protocol 1.0.5)."""
    for each in picks:
        card = each["card"]
        card["used"] += each["slots"]
        card["used_mem"] += each["mem"]
        card["used_core"] += each["core"]
        if "place" in each:
            card["mig"].append(each["place"])
        if "class" in each:
            card["classes"].append(each["class"])
            card["policies"].append(each["policy"])


def memory_on(card: Card, request: Request) -> int:
    """Rule 9."""
    if request["memory"] > 0:
        return int(request["memory"])
    return 0 if request["percent"] is None else int(card["mem"] * request["percent"] // 100)


def why_not(
    card: Card, request: Request, annotations: Json, memory: int, cores: int, total_core: int
) -> str:
    """Rules 5 to 14 of protocol 1.0.4: the first that fails, or nothing."""
    if not uuid_allowed(card, annotations):
        return "CardUuidMismatch"
    if card["count"] <= card["used"]:
        return "CardTimeSlicingExhausted"
    if "mutex" in policies(annotations) and card["used"] > 0:
        return "ExclusiveDeviceAllocateConflict"
    if card["mem"] - card["used_mem"] < memory:
        return "CardInsufficientMemory"
    if total_core - card["used_core"] < cores:
        return "CardInsufficientCore"
    if total_core == 100 and cores == 100 and card["used"] > 0:
        return "ExclusiveDeviceAllocateConflict"
    if total_core != 0 and card["used_core"] == total_core and cores == 0:
        return "CardComputeUnitsExhausted"
    return ""


Custom = Callable[[Card, list[Pick], int], str]


def standard(
    cards: list[Card],
    request: Request,
    annotations: Json,
    *,
    custom: Custom = lambda card, picks, memory: "",
    collect: bool = False,
    total_core: Callable[[Card], int] = lambda card: int(card["core"]),
    numa: bool = False,
) -> tuple[list[Pick], Counter[str]]:
    """Walks from the last card to the first.

    `collect`: does not stop at the wanted number. Returns the picks, and the reasons of the others.
    """
    reasons: Counter[str] = Counter()
    picks: list[Pick] = []
    group: int | None = None
    cores = min(request["cores"], 100)
    for card in reversed(cards):
        if not card["health"]:
            reasons["CardNotHealth"] += 1
            continue
        if card["cordoned"]:
            reasons["CardCordoned"] += 1
            continue
        if not type_allowed(card, annotations):
            reasons["CardTypeMismatch"] += 1
            continue
        if numa and card["numa"] != group:
            # Where all that fit are collected for the topology choice, nothing is counted down.
            if not collect:
                reasons["NumaNotFit"] += len(picks)
            picks, group = [], card["numa"]
        memory = memory_on(card, request)
        while True:
            why = why_not(card, request, annotations, memory, cores, total_core(card))
            why = why or custom(card, picks, memory)
            if why:
                reasons[why] += 1
                break
            picks.append(pick(card, memory, cores))
            if len(picks) == request["count"] and not collect:
                return picks, reasons
            if card["mode"] != "mig":
                break
    return picks, reasons


def short(picks: list[Pick], reasons: Counter[str], total: int) -> Picks:
    """The answer of a loop that ended with too few."""
    reasons["AllocatedCardsInsufficientRequest"] = len(picks)
    return [], reason_text(reasons, total)


def plain(cards: list[Card], request: Request, annotations: Json, earlier: list[Pick]) -> Picks:
    """MLU, DCU and Iluvatar."""
    picks, reasons = standard(cards, request, annotations)
    if len(picks) < request["count"]:
        return short(picks, reasons, len(cards))
    return picks, ""


def same_card(cards: list[Card], request: Request, annotations: Json, earlier: list[Pick]) -> Picks:
    """Mthreads and Metax-GPU: every container of the pod on the same card."""

    def custom(card: Card, picks: list[Pick], memory: int) -> str:
        same = all(each["card"]["id"] == card["id"] for each in earlier)
        return "" if same else "CardNotFoundCustomFilterRule"

    picks, reasons = standard(cards, request, annotations, custom=custom)
    if len(picks) < request["count"]:
        return short(picks, reasons, len(cards))
    return picks, ""
