"""NVIDIA cards, whole and as MIG slices (protocol 1.1)."""

from itertools import combinations

from hamicommon.k8s.types import Json

from tests.reference.fit import Pick, Picks, Request, short, standard
from tests.reference.inventory import Card
from tests.reference.wishes import numa_bound, policies


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


def mig_choice(
    card: Card, memory: int, occupied: list[tuple[int, int]]
) -> tuple[Json, tuple[int, int]] | None:
    """The profile and the (start, size) for an amount of memory (protocol 1.1)."""
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


def realise(each: Pick, on_card: list[Pick]) -> None:
    """Choose the MIG profile of a pick, after earlier picks on the card."""
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
