"""Which MetaX cards may take a slice, which of them are chosen, and the node's score (protocol
1.8).

What a slice's pod was is in `DeviceShare.detail`, and so in `DeviceUsage.holdings`: its class and
its QoS policy (empty for one with all cores). HAMi keeps the policy in a cache until the node
reports it; here it is as lasting as the slice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import DeviceUsage, GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.placement.rules import PARTIAL, REASONS, Rule
from hamicommon.placement.vendor_policy import Chosen, Need, NodeAsk, NotChosen, VendorRules

NAME = "Metax-SGPU"

CLASS, QOS, TOPOLOGY = "class", "qos", "topology"
"""Traits of a selection; the first two are details of a slice, too."""
ONLINE, OFFLINE = "online", "offline"

WEIGHT = 10000
"""HAMi multiplies this vendor's score of a node."""
WHOLE = 100
ZONE_PAIR = 10
"""Score of two cards of one link zone."""


_UNHEALTHY = "CardUnhealthy"
"""HAMi's reason, which only this vendor has."""


def need(request: DeviceRequest, selection: Selection, card: GpuDevice) -> Need:
    """Online pods take no cores."""
    cores = 0 if selection.traits.get(CLASS) == ONLINE else min(request.core_percent, WHOLE)
    return Need(request.memory_mib_on(card.memory_mib), cores)


def choose_cards(ask: NodeAsk) -> Chosen | NotChosen:
    """Slices of cards that pass every rule; of more than are wanted the best by class and zone."""
    refused: dict[GpuUuid, Rule] = {}
    candidates: list[DeviceUsage] = []
    for usage, rule in zip(ask.cards, ask.rules, strict=True):
        refusal = _refusal(ask, usage, rule)
        if refusal is None:
            candidates.append(usage)
        else:
            refused[usage.device.uuid] = refusal
    count = ask.request.count
    if len(candidates) < count:
        names = (
            _UNHEALTHY if rule is Rule.NOT_HEALTHY else REASONS[rule] for rule in refused.values()
        )
        return NotChosen(reasons=Counter([*names, *[PARTIAL] * len(candidates)]), refused=refused)
    picked = candidates if len(candidates) == count else _choice(ask)(candidates, count)
    return Chosen(shares=tuple(_share(ask, usage.device) for usage in picked))


def _refusal(ask: NodeAsk, usage: DeviceUsage, rule: Rule) -> Rule | None:
    """Why the card can't take the slice: the first rule that fails, None when none does."""
    pod_class = ask.selection.traits.get(CLASS, "")
    if not usage.device.healthy:
        return Rule.NOT_HEALTHY
    if not _class_fits(usage, pod_class):
        return Rule.POD_CLASS
    cores = need(ask.request, ask.selection, usage.device).core
    if pod_class != ONLINE and not _qos_fits(usage, ask.selection.traits.get(QOS, ""), cores):
        return Rule.QOS
    if rule != Rule.FITS:
        return rule
    return None if pod_class == ONLINE else _cores_refusal(usage, cores)


def _class_fits(usage: DeviceUsage, pod_class: str) -> bool:
    if usage.used_slots == 0:
        return True
    online, offline = _tasks(usage)
    if bool(online or offline) != bool(pod_class):
        return False
    return not (pod_class == OFFLINE and online)


def _qos_fits(usage: DeviceUsage, policy: str, cores: int) -> bool:
    """Whether the slices on the card have the same policy, or none.

    The policy that the node reports for the card is older than its slices: HAMi keeps the policy
    that it gave in a cache until the node reports the same (protocol 1.8).
    """
    if usage.used_slots == 0 or cores == WHOLE:
        return True
    return all(holding.get(QOS, policy) == policy for holding in usage.holdings)


def _cores_refusal(usage: DeviceUsage, cores: int) -> Rule | None:
    """The last rules of the standard loop, which HAMi does not ask for online pods."""
    whole = usage.device.core_percent
    if whole - usage.used_core_percent < cores:
        return Rule.CORES
    if whole == WHOLE and cores == WHOLE and usage.used_slots > 0:
        return Rule.EXCLUSIVE
    if whole and usage.used_core_percent == whole and cores == 0:
        return Rule.CORES_EXHAUSTED
    return None


def _tasks(usage: DeviceUsage) -> tuple[int, int]:
    """Online and offline slices on the card."""
    classes = Counter(holding.get(CLASS) for holding in usage.holdings)
    return classes[ONLINE], classes[OFFLINE]


def _share(ask: NodeAsk, card: GpuDevice) -> DeviceShare:
    taken = need(ask.request, ask.selection, card)
    return DeviceShare(
        uuid=card.uuid,
        vendor=NAME,
        memory_mib=taken.memory_mib,
        core_percent=taken.core,
        detail=detail_of(ask.selection, taken.core),
    )


def detail_of(selection: Selection, core_percent: int) -> dict[str, str]:
    """Return the details of a slice: its pod's class, and the policy unless it has all cores."""
    policy = "" if core_percent == WHOLE else selection.traits.get(QOS, "")
    kept = {CLASS: selection.traits.get(CLASS, ""), QOS: policy}
    return {name: value for name, value in kept.items() if value}


Choice = Callable[[Sequence[DeviceUsage], int], Sequence[DeviceUsage]]


def _choice(ask: NodeAsk) -> Choice:
    """How to choose among more cards than are wanted."""
    pod_class = ask.selection.traits.get(CLASS, "")
    if pod_class == ONLINE:
        return _fewest_tasks
    if not pod_class and min(ask.request.core_percent, WHOLE) == WHOLE:
        return _one_zone
    return lambda candidates, count: candidates[:count]


def _fewest_tasks(candidates: Sequence[DeviceUsage], count: int) -> Sequence[DeviceUsage]:
    """Few online slices, then few offline ones; cards with offline slices alone come last."""

    def key(usage: DeviceUsage) -> tuple[bool, int, int]:
        online, offline = _tasks(usage)
        return (offline > 0 and online == 0, online, offline)

    return sorted(candidates, key=key)[:count]


def _one_zone(candidates: Sequence[DeviceUsage], count: int) -> Sequence[DeviceUsage]:
    """The smallest link zone with enough cards, else small zones first, then cards of no zone."""
    zones: dict[int, list[DeviceUsage]] = {}
    for usage in candidates:
        zones.setdefault(_zone(usage.device), []).append(usage)
    zoneless = [usage for zone, cards in zones.items() if zone <= 0 for usage in cards]
    groups = sorted((cards for zone, cards in zones.items() if zone > 0), key=len)
    for cards in groups:
        if len(cards) >= count:
            return cards[:count]
    return [*(usage for cards in groups for usage in cards), *zoneless][:count]


def _zone(card: GpuDevice) -> int:
    return int(card.info.get("LinkZone", 0))


def node_score(
    before: Sequence[DeviceUsage],
    containers: Sequence[Sequence[DeviceShare]],
    selection: Selection,
    node_policy: str,
) -> float:
    """Higher is better under binpack; under spread the sign turns, as there the lowest wins."""
    chosen = {share.uuid: share for shares in containers for share in shares}
    score = 0
    if selection.traits.get(CLASS) == ONLINE:
        score = sum(_task_score(usage) for usage in before if usage.device.uuid in chosen)
    elif selection.traits.get(TOPOLOGY) == "true" and any(
        share.core_percent == WHOLE for share in chosen.values()
    ):
        idle = [usage.device for usage in before if usage.used_slots == 0]
        available = _zone_score(idle)
        rest = _zone_score(card for card in idle if card.uuid not in chosen)
        allocated = _zone_score(usage.device for usage in before if usage.device.uuid in chosen)
        score = 10 * allocated - (available - allocated - rest)
    return float(score * WEIGHT if node_policy != "spread" else -score * WEIGHT)


def _task_score(usage: DeviceUsage) -> int:
    online, offline = _tasks(usage)
    return -20 * online - 2 * offline if online else -100 * offline


def _zone_score(cards: Iterable[GpuDevice]) -> int:
    zones = [_zone(card) for card in cards if _zone(card) > 0]
    return ZONE_PAIR * sum(a == b for a, b in combinations(zones, 2))


RULES = VendorRules(
    order=(Rule.CORDONED, Rule.UUID, Rule.SLOTS, Rule.MUTEX, Rule.MEMORY),
    need=need,
    chooser=choose_cards,
    # Health, class and policy come before those of `order`, cores after them.
    chooser_rules=(
        Rule.NOT_HEALTHY,
        Rule.POD_CLASS,
        Rule.QOS,
        Rule.CORES,
        Rule.EXCLUSIVE,
        Rule.CORES_EXHAUSTED,
    ),
    chooser_decides=True,
    scorer=node_score,
    exact=True,
)
