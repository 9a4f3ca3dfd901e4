"""Ascend chips (protocol 1.16)."""

from hamicommon.k8s.types import Json

from tests.reference.fit import Pick, Picks, Request, short, standard
from tests.reference.inventory import Card
from tests.reference.vendors.fit_slots import from_largest_groups


def ascend(
    cards: list[Card], request: Request, annotations: Json, earlier: list[Pick], node: Json
) -> Picks:
    """Sheet 1.16."""
    count, vendor, total = request["count"], request["vendor"], len(cards)
    soft = request["extra"]["soft"]
    supports = (node["metadata"].get("annotations") or {}).get("hami-vnpu-core", "") == "true"
    if soft and not supports:
        return [], f"1/{total} ModeNotFit"
    topology = vendor.startswith("Ascend910") and all("NetworkID" in c["info"] for c in cards)
    modules = vendor == "Ascend910C" and count > 1
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
