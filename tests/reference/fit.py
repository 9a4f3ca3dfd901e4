"""Whether one container's request fits on a node, and on which cards (sheet 1.0.4, 1.1, 4.6).

A pick is a dict: `card`, `mem`, `core` as they are written on the pod, `slots`, and for MIG the
`profile` and `place`. Every fit returns (picks, "") or ([], HAMi's reason).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np

from tests.reference.amounts import Malformed
from tests.reference.inventory import Card

Json = dict[str, Any]
Request = dict[str, Any]
Pick = dict[str, Any]
Picks = tuple[list[Pick], str]


def reason_text(reasons: Counter[str], total: int) -> str:
    """All reasons with the number of cards, sorted as text."""
    return ", ".join(sorted(f"{n}/{total} {word}" for word, n in reasons.items() if n))


def pick(card: Card, mem: int, core: int, **more: Any) -> Pick:
    """One slice."""
    return {"card": card, "mem": mem, "core": core, "slots": 1} | more


def take(picks: list[Pick]) -> None:
    """Puts the slices on their cards (sheet 1.0.5)."""
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


# --- what the annotations say of a card -----------------------------------------------------------

TYPE_KEYS = {
    "NVIDIA": ("nvidia.com/use-gputype", "nvidia.com/nouse-gputype"),
    "AMD": ("amd.com/use-gputype", "amd.com/nouse-gputype"),
    "DCU": ("hygon.com/use-dcutype", "hygon.com/nouse-dcutype"),
}
UUID_KEYS = {
    "NVIDIA": [("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid")],
    "AMD": [("amd.com/use-gpu-uuid", "amd.com/nouse-gpu-uuid")],
    "MLU": [("cambricon.com/use-gpuuuid", "cambricon.com/nouse-gpuuuid")],
    "DCU": [("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid")],
    "Mthreads": [("mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid")],
    "Metax-GPU": [],
    "Metax-SGPU": [("metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid")],
    "kunlun": [
        ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"),
        ("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid"),
    ],
    "XPU": [
        ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"),
        ("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid"),
    ],
    "Enflame": [("enflame.com/use-gpuuuid", "enflame.com/nouse-gpuuuid")],
    "GCU": [],
    "AWSNeuron": [("aws.amazon.com/use-neuron-uuid", "aws.amazon.com/nouse-neuron-uuid")],
    "Vastai": [("vastaitech.com/use-gpuuuid", "vastaitech.com/nouse-gpuuuid")],
    "Biren": [("birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid")],
}


def uuid_keys(word: str) -> list[tuple[str, str]]:
    """Pairs of annotation keys; Ascend and Iluvatar have the word in them."""
    return UUID_KEYS.get(word, [(f"hami.io/use-{word}-uuid", f"hami.io/no-use-{word}-uuid")])


def entries(annotations: Json, key: str) -> list[str]:
    """A comma list; a blank value is none."""
    value = annotations.get(key, "")
    return [entry.strip() for entry in value.split(",")] if value.strip() else []


def type_allowed(card: Card, annotations: Json) -> bool:
    """Sheet 1.0.2, and for NVIDIA the mode."""
    name = card["type"].upper()
    use_key, avoid_key = TYPE_KEYS.get(card["word"], ("", ""))
    use, avoid = entries(annotations, use_key), entries(annotations, avoid_key)
    if use and not any(entry and entry.upper() in name for entry in use):
        return False
    if any(entry and entry.upper() in name for entry in avoid):
        return False
    if card["word"] == "NVIDIA":
        mode = annotations.get("nvidia.com/vgpu-mode", "")
        return not mode or card["mode"] in mode
    return True


def uuid_allowed(card: Card, annotations: Json) -> bool:
    """Sheet 1.0.2: all pairs must pass."""
    for use_key, avoid_key in uuid_keys(card["word"]):
        use = entries(annotations, use_key)
        if use and card["id"] not in use:
            return False
        if card["id"] in entries(annotations, avoid_key):
            return False
    return True


def numa_bound(annotations: Json) -> bool:
    """What Go's ParseBool takes for true."""
    value = annotations.get("nvidia.com/numa-bind", "")
    return value in ("1", "t", "T", "TRUE", "true", "True")


def memory_on(card: Card, request: Request) -> int:
    """Rule 9."""
    if request["memory"] > 0:
        return int(request["memory"])
    return 0 if request["percent"] is None else int(card["mem"] * request["percent"] // 100)


# --- the order of cards ---------------------------------------------------------------------------


def policies(annotations: Json, default: str = "spread") -> list[str]:
    """The card policies in the order written."""
    return entries(annotations, "hami.io/gpu-scheduler-policy") or [default]


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
    """Higher is fuller; requests count only on cards whose type is just the vendor's word."""
    if not (card["count"] and card["core"] and card["mem"]):
        return np.float32(0)
    slots, core, mem = card["used"], card["used_core"], card["used_mem"]
    for request in requests:
        if request["word"] == card["type"]:
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


# --- the standard loop ----------------------------------------------------------------------------


def why_not(
    card: Card, request: Request, annotations: Json, memory: int, cores: int, total_core: int
) -> str:
    """Rules 5 to 14 of sheet 1.0.4: the first that fails, or nothing."""
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


# --- NVIDIA ---------------------------------------------------------------------------------------


def mig_choice(
    card: Card, memory: int, occupied: list[tuple[int, int]]
) -> tuple[Json, tuple[int, int]] | None:
    """The profile and the (start, size) for an amount of memory (sheet 1.1)."""
    profiles = sorted(card["profiles"], key=lambda p: (p["memoryMB"], p["sliceCount"]))
    for profile in profiles:
        if profile["memoryMB"] < memory:
            continue
        high_first = profile["name"].startswith(("1g.", "3g."))
        places = sorted(
            ((p["start"], p["size"]) for p in profile["placements"]),
            key=lambda p: p[0],
            reverse=high_first,
        )
        for start, size in places:
            if all(start + size <= s or s + z <= start for s, z in occupied):
                return profile, (start, size)
    return None


def nvidia(
    cards: list[Card],
    request: Request,
    annotations: Json,
    earlier: list[Pick],
    pairs: dict[str, dict[str, int]],
) -> Picks:
    """The standard loop with NUMA groups, MIG and topology."""

    def custom(card: Card, picks: list[Pick], memory: int) -> str:
        if card["mode"] != "mig":
            return ""
        occupied = list(card["mig"])
        for amount in [p["mem"] for p in picks if p["card"] is card] + [memory]:
            choice = mig_choice(card, amount, occupied)
            if choice is None:
                return "CardMigTopologyInfeasible"
            occupied.append(choice[1])
        return ""

    count = request["count"]
    topology = "topology-aware" in policies(annotations)
    picks, reasons = standard(
        cards,
        request,
        annotations,
        custom=custom,
        collect=topology,
        numa=numa_bound(annotations),
    )
    if len(picks) < count:
        return short(picks, reasons, len(cards))
    if len(picks) > count:
        picks = best_connected(picks, count, pairs)
    for each in picks:
        if each["card"]["mode"] == "mig":
            realise(each, [p for p in picks if p["card"] is each["card"]])
    return picks, ""


def realise(each: Pick, on_card: list[Pick]) -> None:
    """A MIG pick gets its profile, after those picked before it."""
    card = each["card"]
    before = [p["place"] for p in on_card if "place" in p]
    choice = mig_choice(card, each["mem"], [*card["mig"], *before])
    assert choice is not None
    profile, place = choice
    each.update(mem=profile["memoryMB"], core=profile["core"], profile=profile["name"], place=place)


def best_connected(picks: list[Pick], count: int, pairs: dict[str, dict[str, int]]) -> list[Pick]:
    """Topology: one card that is connected least, or the set that is connected best."""

    def score(a: Pick, b: Pick) -> int:
        return pairs.get(a["card"]["id"], {}).get(b["card"]["id"], 0)

    if count == 1:
        return [min(picks, key=lambda p: sum(score(p, q) for q in picks if q is not p))]
    return list(
        max(
            combinations(picks, count),
            key=lambda chosen: sum(score(a, b) for a, b in combinations(chosen, 2)),
        )
    )
